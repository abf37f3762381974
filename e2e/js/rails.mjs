// The stock Rails client, @rails/actioncable, in Node: only what a browser
// gives it is put in place (WebSocket and two globals).
import ActionCable from "@rails/actioncable"
import WebSocket from "ws"
import { deliver, emit, serve } from "./lines.mjs"

globalThis.addEventListener = () => {}
globalThis.removeEventListener = () => {}
globalThis.document = { visibilityState: "visible" }
ActionCable.adapters.WebSocket = WebSocket

let consumer
const subscriptions = new Map()

serve({
  connect({ url, stale }) {
    if (stale) ActionCable.ConnectionMonitor.staleThreshold = stale
    consumer = ActionCable.createConsumer(url)
  },
  subscribe({ id, params, name }) {
    subscriptions.set(
      id,
      consumer.subscriptions.create(params, {
        connected: info => emit("connected", { id, reconnected: !!info?.reconnected }),
        disconnected: info => emit("disconnected", { id, again: !!info?.willAttemptReconnect }),
        rejected: () => emit("rejected", { id }),
        received: data => deliver(id, [name ?? "", "", 0, JSON.stringify(data), false]),
      })
    )
  },
  unsubscribe({ id }) {
    subscriptions.get(id).unsubscribe()
    emit("unsubscribed", { id })
  },
  disconnect() {
    consumer.disconnect()
  },
})
