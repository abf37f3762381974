// The stock AnyCable client, @anycable/core, in Node.
import { createCable } from "@anycable/core"
import WebSocket from "ws"
import { deliver, emit, serve } from "./lines.mjs"

let cable

serve({
  connect({ url, protocol, reconnect, historyTimestamp }) {
    const options = { websocketImplementation: WebSocket, protocol: protocol ?? "actioncable-v1-ext-json" }
    if (reconnect) options.reconnectStrategy = () => reconnect
    if (historyTimestamp !== undefined) options.historyTimestamp = historyTimestamp
    cable = createCable(url, options)
    cable.on("connect", e => emit("connect", { again: !!e.reconnect }))
    cable.on("disconnect", e => emit("disconnect", { reason: e.reason ?? "" }))
    cable.on("close", e => emit("close", { reason: e?.reason ?? "" }))
  },
  subscribe({ id, name }) {
    const channel = cable.streamFrom(name)
    channel.on("connect", () => emit("connected", { id }))
    channel.on("disconnect", () => emit("disconnected", { id }))
    channel.on("close", e => emit("closed", { id, reason: String(e?.reason ?? e) }))
    channel.on("info", e => emit("info", { id, type: e?.type ?? e }))
    channel.on("message", (data, meta) =>
      deliver(id, [meta?.stream ?? "", meta?.epoch ?? "", meta?.offset ?? 0, JSON.stringify(data), false])
    )
  },
  disconnect() {
    cable.disconnect()
  },
})
