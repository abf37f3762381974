/** The demo page: watches one answer at a time and shows what becomes of it. */

import { createClient } from '/client.js'
import { Refused, fingerprint, order, source } from './answers.js'
import { EventList, FrameLog } from './lists.js'
import { Measure } from './measure.js'
import { TextView } from './text-view.js'
import { setUpAside } from './aside.js'
import { Link, disturbance } from './unreliable.js'

/** How long a cut lasts, in milliseconds. */
const CUT = 1500
/** An answer that brings nothing for so long is ordered again from there on. */
const STALL = 3000
const MEMORY = 'chronocast-demo'

/** @typedef {import('./measure.js').Verdict} Verdict */
/** @typedef {'starting' | 'writing' | 'complete' | 'failed'} Phase */

/** @param {string} id @returns {any} */
const $ = (id) => document.getElementById(id)
const number = new Intl.NumberFormat('en')
/** @param {number} n @param {string} one @param {string} [many] */
const count = (n, one, many = one + 's') => `${number.format(n)} ${n === 1 ? one : many}`

const link = new Link()
const client = createClient('/cable', { WebSocket: link.socketClass(WebSocket), minDelay: 200, maxDelay: 3000 })
const ordered = new TextView($('ordered'), $('ordered-scroll'))
const raw = new TextView($('raw'), $('raw-scroll'))
const frames = new FrameLog($('frames'))
const events = new EventList($('events'))

/** @type {import('./answers.js').Source} */
let text = { text: '', tokens: 0 }
/** @type {Phase} */
let phase = 'starting'
let notice = ''
let name = ''
/** @type {any} */
let stream = null
/** epoch that the last reset told of: what an older one left on the way is not shown */
let life = 0n
let measure = new Measure()
/** @type {(Verdict & { fingerprint: string | null }) | null} */
let verdict = null
let begun = performance.now()
/** when the newest message was delivered, or the wait for one began */
let moved = begun
/** when the stream was last seen to wait for a missing message */
let waitingSince = 0
/** what comes next was asked for, after a reconnect or at the start */
let resuming = false
/** begin is at work */
let ordering = false

const seconds = () => (performance.now() - begun) / 1000
/** @param {string} tone @param {string} words @param {string} [topic] */
const tell = (tone, words, topic) => {
  events.add(tone, words, seconds().toFixed(1), topic)
  draw()
}
/**
 * healing tells of a gap. Under shuffling they come and go many times a second
 * and share a line.
 * @param {string} tone @param {string} words
 */
const healing = (tone, words) => tell(tone, `${count(measure.gaps, 'gap')} so far: ${words}`, 'gap')
/** @param {string} words said to those who do not see the page */
const announce = (words) => ($('announce').textContent = words)

// — memory —

/** @returns {{ stream?: string, offset?: number, shuffle?: boolean, drop?: boolean, rate?: number }} */
function recall() {
  try {
    return JSON.parse(sessionStorage.getItem(MEMORY) ?? '{}') ?? {}
  } catch {
    return {}
  }
}

function remember() {
  const state = { stream: name, offset: measure.position, shuffle: link.shuffle, drop: link.drop, rate: rate() }
  try {
    sessionStorage.setItem(MEMORY, JSON.stringify(state))
  } catch {
    // storage is off: the address still names the stream
  }
}

/** The stream that the address names, or "". */
function named() {
  try {
    const stream = decodeURIComponent(location.hash.slice(1))
    return /^demo\/./.test(stream) ? stream : ''
  } catch {
    return ''
  }
}

// — watching an answer —

/**
 * watch shows the stream from its first token on.
 * @param {string} which
 */
function watch(which) {
  stream?.close()
  name = which
  begun = performance.now()
  life = 0n
  events.clear()
  anew()
  if (named() !== name) history.replaceState(null, '', '#' + encodeURIComponent(name).replaceAll('%2F', '/'))
  stream = client.stream(name, { after: 'start' })
  const mine = stream
  /** @param {string} event @param {(value: any) => void} f */
  const on = (event, f) => stream.on(event, (/** @type {any} */ value) => mine === stream && f(value))
  on('message', delivered)
  on('state', changed)
  on('gap', ({ after, before }) => {
    measure.gaps++
    healing('warn', after + 2 === before ? `${before - 1} is missing` : `${after + 1} to ${before - 1} are missing`)
  })
  on('recovered', ({ from, to, count: brought }) => {
    measure.recovered++
    if (!resuming) return healing('ok', `the last one closed at ${to.offset}`)
    resuming = false
    tell('ok', brought ? `Caught up: ${count(brought, 'token')}, offsets ${from.offset + 1} to ${to.offset}` : 'Caught up: nothing was missed')
  })
  on('reset', restarted)
  on('error', (error) => tell('bad', error.message))
  remember()
  draw()
}

/** anew empties the panes and counters: an answer begins. */
function anew() {
  verdict = null
  measure = new Measure()
  moved = performance.now()
  waitingSince = 0
  resuming = false
  for (const view of [ordered, raw, frames]) view.clear()
  enter('writing')
}

/**
 * restarted: the position cannot be continued. In a new life of the stream, or
 * one that was put back, an offset names another message, so nothing shown
 * stays. Where the stream was only trimmed, it stays beside the hole.
 *
 * @param {{ reason: string, epoch: string, first: number, offset: number, from: { offset: number } }} reset
 */
function restarted({ reason, epoch, first, offset, from }) {
  life = BigInt(epoch)
  if (reason === 'trimmed') {
    const gone = from.offset ? `offsets ${from.offset + 1} to ${first - 1} are` : 'the beginning is'
    tell('bad', `Reset (trimmed): ${gone} no longer kept, the stream goes on with ${first}. Only what is kept can be compared`)
  } else {
    const why = reason === 'ahead' ? `offset ${from.offset} is beyond the newest, ${offset}` : `the stream has a new life, in which offset ${from.offset} means nothing`
    anew()
    tell('bad', `Reset (${reason}): ${why}. The page begins anew${first > 1 ? ` with ${first}, the first one kept` : ''}`)
    announce('The stream was reset: the answer begins anew')
  }
  measure.reset(Math.max(0, first - 1), ordered.text.length)
  resuming = offset >= first // what is there comes first
  if (text.tokens && measure.position >= text.tokens) complete()
  draw()
}

/** @param {{ data: unknown, offset: number }} message */
function delivered({ data, offset }) {
  measure.deliver(offset)
  moved = performance.now()
  if (phase === 'failed' && !ordering) enter('writing')
  ordered.append(String(data))
  if (measure.position >= text.tokens) complete()
  draw()
}

/** @param {import('./unreliable.js').DataFrame} frame */
link.observe = (frame) => {
  if (frame.stream !== name || BigInt(frame.epoch) < life) return
  const at = seconds()
  for (const { offset, message } of frame.messages) {
    const { kind, stray } = measure.arrive(offset, frame.replay)
    raw.append(String(message), stray)
    frames.add(offset, kind, stray, at)
  }
  draw()
}

/** @param {string} state */
function changed(state) {
  waitingSince = state === 'gap' ? performance.now() : 0
  if (state === 'resuming') resuming = true
  moved = performance.now()
  if (state === 'suspended') {
    measure.disconnected()
    tell('bad', `Connection lost at offset ${measure.position}`)
    if (phase === 'writing') announce('Connection lost')
  } else if (state === 'resuming' && measure.position) {
    tell('plain', `Connected again, asking for what follows ${measure.position}`)
    if (phase === 'writing') announce('Connected again')
  } else if (state === 'closed') {
    tell('bad', 'The stream is closed')
  }
  draw()
}

/** complete gives the verdict; it is called again should more arrive. */
async function complete() {
  const of = measure
  const was = phase
  enter('complete')
  const shown = ordered.text
  const result = measure.verdict(shown, text.text, text.tokens)
  const [mine, theirs] = await Promise.all([fingerprint(shown), fingerprint(text.text)])
  if (of !== measure) return
  const same = mine === theirs
  verdict = { ...result, identical: result.identical && same, agrees: result.agrees && (same || result.lost > 0), fingerprint: mine }
  if (was !== 'complete') {
    tell(tone(verdict), `Complete, ${verdict.identical ? 'and identical to the source' : verdict.agrees ? 'and identical to the source where it is kept' : 'but not identical to the source'}`)
    announce(sentence(verdict))
  }
  draw()
}

/** @param {Verdict} v */
const tone = (v) => (v.identical ? 'ok' : v.agrees ? 'warn' : 'bad')

/** @param {Verdict} v */
const sentence = (v) =>
  `${v.identical ? 'Identical' : !v.agrees ? 'Not identical' : v.tokens ? 'Identical where kept' : 'Nothing to compare'}: ${count(v.tokens, 'token')}, ${number.format(v.missing)} missing, ${number.format(v.doubled)} doubled, ${number.format(v.disordered)} out of order`

// — ordering answers —

/** @param {Phase} next @param {string} [why] */
function enter(next, why = '') {
  phase = next
  notice = why
  draw()
}

const rate = () => Number($('speed').value)

/** begin has a new answer written and watches it. */
async function begin() {
  if (ordering) return
  ordering = true
  $('again').setAttribute('aria-disabled', 'true')
  for (;;) {
    try {
      if (!text.tokens) {
        text = await source()
        $('of').textContent = number.format(text.tokens)
      }
      watch((await order({ rate: rate() })).stream)
      break
    } catch (error) {
      const wait = error instanceof Refused ? error.retryAfter : 2
      enter('failed', `${error instanceof Refused ? error.message : 'The server does not answer'}. Trying again in ${count(wait, 'second')}.`)
      await new Promise((resolve) => setTimeout(resolve, wait * 1000))
    }
  }
  ordering = false
  $('again').removeAttribute('aria-disabled')
}

/** proceed orders the rest of an answer whose writer has gone, say with a restart of the server. */
async function proceed() {
  moved = performance.now()
  try {
    await order({ stream: name, from: Math.min(measure.position, text.tokens), rate: rate() })
    tell('plain', measure.position ? `Nothing new for a while: the rest was ordered, from token ${measure.position}` : 'Nothing is there: the answer was ordered from its first token')
    if (phase === 'failed') enter('writing')
  } catch (error) {
    enter('failed', error instanceof Refused ? error.message : 'The server does not answer.')
  }
}

setInterval(() => {
  if (name) remember()
  const still = performance.now() - moved > STALL
  if (still && !ordering && (phase === 'writing' || phase === 'failed') && stream?.state === 'live') proceed()
  if (waitingSince) draw()
}, 1000)

// — drawing: once per frame, or a few times a second where no frames are drawn —

let drawing = false
function draw() {
  if (drawing) return
  drawing = true
  let done = false
  const once = () => {
    if (done) return
    done = true
    drawing = false
    clearTimeout(timer)
    cancelAnimationFrame(frame)
    paint()
  }
  const frame = requestAnimationFrame(once)
  const timer = setTimeout(once, 250)
}

/** @param {string} id @param {string | number} value */
function put(id, value) {
  const element = $(id)
  const words = typeof value === 'number' ? number.format(value) : value
  if (element.textContent !== words) element.textContent = words
}

/** @returns {[tone: string, words: string]} */
function condition() {
  if (phase === 'failed') return ['bad', 'Waiting']
  if (phase === 'starting' || !stream) return ['plain', 'Starting']
  if (client.state === 'connecting' || client.state === 'waiting') return ['bad', 'Cut off']
  if (client.state === 'closed' || stream.state === 'closed') return ['bad', 'Closed']
  if (phase === 'complete') return ['ok', 'Complete']
  if (stream.state === 'live') return ['ok', 'Live']
  if (stream.state !== 'gap') return ['warn', 'Catching up']
  // Gaps come and go many times a second: only one that stays is shown.
  return performance.now() - waitingSince > 500 ? ['warn', 'Holding'] : ['ok', 'Live']
}

function paint() {
  for (const view of [ordered, raw, frames]) view.flush()
  const [mood, words] = condition()
  $('chip').dataset.tone = mood
  put('chip-text', words)
  $('progress').value = text.tokens ? Math.min(1, measure.position / text.tokens) : 0
  put('at', measure.position)
  put('n-position', measure.position)
  put('n-received', measure.received)
  put('n-delivered', measure.delivered)
  put('n-held', measure.held)
  put('n-outofplace', measure.outOfPlace)
  put('n-duplicates', measure.duplicates)
  put('n-gaps', measure.gaps)
  put('n-recovered', measure.recovered)
  put('stream-name', name || '…')
  put('epoch', stream?.position?.epoch ?? '…')
  put('notice', notice)
  $('notice').hidden = !notice
  $('stage').dataset.phase = phase
  put('raw-title', `${number.format(measure.outOfPlace)} of ${number.format(measure.received)} out of place`)
  $('raw-verdict').dataset.tone = measure.outOfPlace ? 'bad' : measure.received ? 'ok' : 'plain'
  $('verdict').dataset.tone = verdict ? tone(verdict) : 'plain'
  put('verdict-title', verdict ? sentence(verdict) : 'Not complete yet')
  put('verdict-text', verdict?.lost ? `${count(verdict.lost, 'token')} no longer kept by the server, so not compared` : verdict?.fingerprint ? `SHA-256 of what you see: ${verdict.fingerprint.slice(0, 12)}…` : verdict ? 'compared with the source' : 'then compared with the source, byte for byte')
}

// — controls —

/** @param {number} [ms] */
function cut(ms = CUT) {
  tell('plain', 'You cut the connection')
  link.cut(ms)
}

/** @param {'shuffle' | 'drop'} which @param {boolean} on */
function trouble(which, on) {
  link[which] = on
  $(which).checked = on
  put('trouble', disturbance(link))
  remember()
}

/** @param {number} tokens a second */
function showSpeed(tokens) {
  $('speed').value = tokens
  $('speed-text').textContent = `${tokens} tokens/s`
  $('speed').setAttribute('aria-valuetext', `${tokens} tokens a second`)
}

function setUpControls() {
  const { shuffle = true, drop = false, rate: before = 60 } = recall()
  link.shuffle = $('shuffle').checked = shuffle
  link.drop = $('drop').checked = drop
  put('trouble', disturbance(link))
  showSpeed(before)
  $('shuffle').addEventListener('change', () => trouble('shuffle', $('shuffle').checked))
  $('drop').addEventListener('change', () => trouble('drop', $('drop').checked))
  $('cut').addEventListener('click', () => cut())
  $('reload').addEventListener('click', () => location.reload())
  $('again').addEventListener('click', begin)
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer
  $('speed').addEventListener('input', () => {
    showSpeed(rate())
    clearTimeout(timer)
    timer = setTimeout(() => {
      remember()
      if (phase !== 'writing') return
      order({ stream: name, from: measure.position, rate: rate() }).catch((error) => tell('bad', `The speed stays as it is: ${error.message}`))
    }, 150)
  })
  window.addEventListener('pagehide', remember)
  document.addEventListener('visibilitychange', draw)
  window.addEventListener('hashchange', () => {
    if (named() && named() !== name) watch(named())
  })
}

async function main() {
  setUpControls()
  setUpAside(client)
  client.on('error', (error) => tell('bad', error.message))
  client.on('state', draw)
  const { stream: before, offset = 0 } = recall()
  const wanted = named()
  if (!wanted) return begin()
  try {
    text = await source()
    put('of', text.tokens)
  } catch {
    return begin()
  }
  watch(wanted)
  if (before === wanted && offset > 0) tell('plain', `Reloaded at offset ${offset}: reading again from the first token`)
}

/** What tests look at and pull. */
const hook = {
  /** @returns {string} */
  get stream() {
    return name
  },
  get phase() {
    return phase
  },
  get connection() {
    return client.state
  },
  get verdict() {
    return verdict
  },
  get orderedText() {
    return ordered.text
  },
  get rawText() {
    return raw.text
  },
  get sourceText() {
    return text.text
  },
  get counters() {
    const { position, received, delivered, held, duplicates, outOfPlace, doubled, disordered, gaps, recovered } = measure
    return { position, received, delivered, held, duplicates, outOfPlace, doubled, disordered, gaps, recovered, dropped: link.dropped, tokens: text.tokens }
  },
  cut,
  /** @param {boolean} on */
  shuffle: (on) => trouble('shuffle', on),
  /** @param {boolean} on */
  drop: (on) => trouble('drop', on),
  start: begin,
  client,
}
Object.assign(window, { chronocastDemo: hook })

main()
