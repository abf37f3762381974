/** The demo's own endpoints. */

/** @typedef {{ text: string, tokens: number }} Source */

/** Refused is an order that the server did not take. */
export class Refused extends Error {
  /**
   * @param {string} message
   * @param {number} retryAfter seconds to wait before the next try
   */
  constructor(message, retryAfter) {
    super(message)
    this.retryAfter = retryAfter
  }
}

/** @returns {Promise<Source>} */
export async function source() {
  const response = await fetch('/demo/text')
  if (!response.ok) throw new Refused(`the source text is not to be had (${response.status})`, 2)
  return { text: await response.text(), tokens: Number(response.headers.get('Chronocast-Tokens')) }
}

/**
 * order has an answer written: a new one, the rest of one that was cut off, or
 * one that is being written at another rate.
 *
 * @param {{ stream?: string, rate?: number, from?: number }} wish
 * @returns {Promise<{ stream: string, tokens: number, bytes: number }>}
 */
export async function order(wish) {
  const response = await fetch('/demo/answers', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(wish),
  })
  const body = await response.json().catch(() => ({}))
  if (response.ok) return body
  throw new Refused(body.message ?? `the server says ${response.status}`, Number(response.headers.get('Retry-After')) || 2)
}

/**
 * fingerprint is the SHA-256 of the text's UTF-8 in hexadecimal, or null where
 * the browser computes none (a page that came neither over TLS nor from this
 * machine).
 *
 * @param {string} text
 */
export async function fingerprint(text) {
  if (!globalThis.crypto?.subtle) return null
  const sum = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text))
  return Array.from(new Uint8Array(sum), (byte) => byte.toString(16).padStart(2, '0')).join('')
}
