/** Builds dist/: the whole client, and the client with its elements for Turbo, each as one minified ES module. */

import { writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const root = new URL('..', import.meta.url)

/**
 * Property names that never leave the client: neither on the wire, nor in what
 * an application sees, nor in a Platform. They are shortened in the bundle.
 */
const INTERNAL = [
  'again', 'asked', 'closed', 'connection', 'doubt', 'down', 'effects', 'emit', 'emitter', 'floor', 'flush',
  'fromStart', 'full', 'gate', 'handed', 'handle', 'handles', 'head', 'heads', 'held', 'hooks', 'host', 'idle',
  'listener', 'loops', 'mark', 'newer', 'options', 'passed', 'paused', 'queue', 'receive', 'renew', 'repause',
  'request', 'restart', 'since', 'step', 'stop', 'subscription', 'taken', 'tries', 'up', 'wake',
]

/** Where each bundle begins. */
export const ENTRIES = { 'chronocast.min.js': 'src/index.js', 'chronocast-turbo.min.js': 'src/turbo/index.js' }

/**
 * @param {keyof typeof ENTRIES} name
 * @returns {Promise<string>} the same text for the same sources, on every machine
 */
export async function bundle(name = 'chronocast.min.js') {
  const { outputFiles } = await build({
    absWorkingDir: fileURLToPath(root),
    entryPoints: [ENTRIES[name]],
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    legalComments: 'none',
    charset: 'utf8',
    mangleProps: new RegExp(`^(${INTERNAL.join('|')})$`),
    write: false,
  })
  return /** @type {{ text: string }} */ (outputFiles[0]).text
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  for (const name of /** @type {(keyof typeof ENTRIES)[]} */ (Object.keys(ENTRIES))) {
    await writeFile(new URL('dist/' + name, root), await bundle(name))
  }
}
