// JSON lines between a script and the Go test that runs it: commands come in
// on stdin, events go out on stdout.
import readline from "node:readline"

/** Writes one event. */
export function emit(t, fields = {}) {
  process.stdout.write(JSON.stringify({ t, ...fields }) + "\n")
}

const waiting = new Map()

/**
 * Collects delivered messages and writes them in batches, so that a fast
 * stream does not cost a line a message.
 * @param {string} id handle
 * @param {[string, string, number, string, boolean]} m stream, epoch, offset, JSON text, replayed
 */
export function deliver(id, m) {
  let batch = waiting.get(id)
  if (!batch) {
    waiting.set(id, (batch = []))
    setTimeout(() => {
      waiting.delete(id)
      emit("m", { id, m: batch })
    }, 20)
  }
  batch.push(m)
}

/**
 * Runs commands as they come; ends the process when stdin ends.
 * @param {Record<string, (args: any) => unknown>} commands
 */
export function serve(commands) {
  process.on("unhandledRejection", err => emit("crash", { message: String(err?.stack ?? err) }))
  process.on("uncaughtException", err => emit("crash", { message: String(err?.stack ?? err) }))
  const lines = readline.createInterface({ input: process.stdin })
  lines.on("line", async line => {
    const args = JSON.parse(line)
    try {
      const value = await commands[args.do](args)
      if (args.call) emit("result", { id: args.call, value: value === undefined ? null : value })
    } catch (err) {
      const message = String(err?.stack ?? err)
      if (args.call) emit("result", { id: args.call, error: message })
      else emit("crash", { message })
    }
  })
  lines.on("close", () => process.exit(0))
  emit("ready")
}
