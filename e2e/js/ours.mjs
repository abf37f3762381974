// The bundled client in Node 20, which has no WebSocket of its own.
import WebSocket from "ws"
import { createClient } from "../../client-js/src/index.js"
import { deliver, emit, serve } from "./lines.mjs"

const clients = new Map()
const handles = new Map()

/** Counts the sockets a client opens and says when. */
function counting(client) {
  return class extends WebSocket {
    constructor(...args) {
      super(...args)
      emit("dial", { id: client, at: Date.now() })
      this.on("open", () => emit("open", { id: client, protocol: this.protocol }))
      this.on("close", code => emit("shut", { id: client, code }))
      this.on("error", () => {})
    }
  }
}

function open({ client = "c", id, name, after, quiet }) {
  const stream = clients.get(client).stream(name, after === undefined ? undefined : { after })
  handles.set(id, stream)
  stream.on("message", m => deliver(id, [name, m.epoch, m.offset, JSON.stringify(m.data), !!m.replayed]))
  stream.on("state", state => {
    if (!quiet) emit("state", { id, state })
  })
  // A handle that joins a live subscription is live before anyone can listen.
  if (!quiet) emit("state", { id, state: stream.state })
  for (const kind of ["gap", "recovered", "reset", "error"]) {
    stream.on(kind, e => {
      if (!quiet || kind === "reset" || kind === "error") {
        emit(kind, { id, ...(e instanceof Error ? { message: e.message, code: e.code } : e), reason: e?.reason })
      }
    })
  }
  return stream
}

serve({
  client({ client = "c", url, minDelay, maxDelay, options = {} }) {
    clients.set(client, createClient(url, { WebSocket: counting(client), minDelay, maxDelay, ...options }))
  },
  stream(args) {
    open(args)
  },
  close({ id }) {
    handles.get(id).close()
    handles.delete(id)
  },
  /** Leaves a stream for another one and comes back at once where it was. */
  swap({ client = "c", id, name, other }) {
    const at = handles.get(id).position
    handles.get(id).close()
    open({ client, id: other, name: other, quiet: true })
    open({ client, id, name, after: at ?? "start", quiet: true })
    handles.get(other).close()
  },
  closeClient({ client = "c" }) {
    clients.get(client).close()
    clients.delete(client)
  },
  disconnect({ client = "c" }) {
    clients.get(client).disconnect()
  },
  connect({ client = "c" }) {
    clients.get(client).connect()
  },
  position({ id }) {
    return handles.get(id)?.position ?? null
  },
  state({ id }) {
    return handles.get(id)?.state ?? null
  },
  /** Publishes as soon as the handle says it is live (B44). */
  publishWhenLive({ client = "c", id, name, url, payload }) {
    let done = false
    const stream = open({ client, id, name })
    stream.on("state", state => {
      if (state !== "live" || done) return
      done = true
      fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: payload })
        .then(r => r.json())
        .then(at => emit("published", { id, ...at }))
    })
  },
  /** Goes to another stream and back, many times, keeping what each handle was given. */
  async switching({ client = "c", names, times, every }) {
    let foreign = 0
    let seen = 0
    for (let i = 0; i < times; i++) {
      const name = names[i % names.length]
      const stream = clients.get(client).stream(name, { after: "start" })
      stream.on("message", m => {
        seen++
        if (m.data.s !== name) foreign++
      })
      await new Promise(resolve => setTimeout(resolve, every))
      stream.close()
    }
    return { foreign, seen }
  },
  /** Reads a stream with for await, stopping after count messages. */
  async iterate({ client = "c", id, name, after, count }) {
    const stream = clients.get(client).stream(name, { after })
    let n = 0
    for await (const m of stream) {
      deliver(id, [name, m.epoch, m.offset, JSON.stringify(m.data), !!m.replayed])
      if (++n === count) break
    }
    return n
  },
})
