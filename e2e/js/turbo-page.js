// Runs in every page of the Turbo tests before its own scripts: lets a test see
// the commands on the wire, change the order of frames, and keep a page from
// drawing.
globalThis.wire = []
globalThis.holdBack = null // (frame) => true: hand it over after the next one
// A page on show draws nothing between the two pictures of a view transition.
globalThis.stopDrawing = () =>
  new Promise(stopped => {
    const transition = document.startViewTransition(() => (stopped(), new Promise(() => {})))
    for (const end of ["ready", "finished", "updateCallbackDone"]) transition[end].catch(() => {})
  })
globalThis.WebSocket = class extends WebSocket {
  #kept = null
  constructor(...args) {
    super(...args)
    const handle = { get: () => null, set: f => (super.onmessage = f && (event => this.#pass(f, event))) }
    Object.defineProperty(this, "onmessage", handle)
  }
  #pass(f, event) {
    const kept = this.#kept
    if (!kept && globalThis.holdBack?.(event.data)) return (this.#kept = event)
    this.#kept = null
    f(event)
    if (kept) f(kept)
  }
  send(text) {
    globalThis.wire.push(JSON.parse(text))
    super.send(text)
  }
}
globalThis.told = []
for (const name of ["state", "recovered", "reset", "error"]) {
  addEventListener("chronocast:" + name, event => globalThis.told.push([name, event.detail?.state ?? event.detail?.code ?? event.detail]))
}
globalThis.list = () => [...document.querySelectorAll("#list li")].map(e => e.textContent)
globalThis.source = () => document.querySelector("chronocast-stream-source, turbo-cable-stream-source")
