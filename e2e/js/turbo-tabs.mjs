// Chromium spoken to directly. Playwright lets every tab believe that it has
// the focus, and such a tab is never hidden; here a tab behind another one is.
import { spawn } from "node:child_process"
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import WebSocket from "ws"
import { emit, serve } from "./lines.mjs"

const data = mkdtempSync(join(tmpdir(), "chronocast-tabs-"))
const chromium = spawn(process.env.CHROMIUM ?? "/usr/bin/chromium", [
  "--headless=new", "--remote-debugging-port=0", "--user-data-dir=" + data, "--no-sandbox", "--disable-gpu", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync", "about:blank",
], { stdio: "ignore" })
process.on("exit", () => {
  chromium.kill("SIGKILL")
  rmSync(data, { recursive: true, force: true, maxRetries: 3 })
})

const port = join(data, "DevToolsActivePort")
while (!existsSync(port) || !readFileSync(port, "utf8").includes("/devtools")) await new Promise(go => setTimeout(go, 50))
const [number, path] = readFileSync(port, "utf8").trim().split("\n")
const socket = new WebSocket(`ws://127.0.0.1:${number}${path}`, { maxPayload: 1 << 28 })
await new Promise((go, no) => socket.once("open", go).once("error", no))

let last = 0
const answers = new Map()
const tabs = new Map() // id → { targetId, sessionId }

const send = (method, params = {}, sessionId) =>
  new Promise((resolve, reject) => {
    answers.set(++last, { resolve, reject, method })
    socket.send(JSON.stringify({ id: last, method, params, sessionId }))
  })

socket.on("message", text => {
  const { id, result, error, method, params, sessionId } = JSON.parse(text)
  const answer = answers.get(id)
  answers.delete(id)
  if (error) answer?.reject(new Error(`${answer.method}: ${error.message}`))
  else answer?.resolve(result)
  const tab = [...tabs].find(([, t]) => t.sessionId === sessionId)?.[0]
  if (method === "Runtime.exceptionThrown") {
    emit("complaint", { id: tab, kind: "exception", text: params.exceptionDetails.exception?.description ?? params.exceptionDetails.text })
  }
  if (method === "Runtime.consoleAPICalled" && ["error", "warning"].includes(params.type)) {
    emit("complaint", { id: tab, kind: params.type, text: params.args.map(a => a.value ?? a.description).join(" ") })
  }
})

async function evaluate(id, expression) {
  const { result, exceptionDetails } = await send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true }, tabs.get(id).sessionId)
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text)
  return result.value
}

serve({
  async open({ id, url, init }) {
    const { targetId } = await send("Target.createTarget", { url: "about:blank" })
    const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true })
    tabs.set(id, { targetId, sessionId })
    await send("Runtime.enable", {}, sessionId)
    await send("Page.enable", {}, sessionId)
    if (init) await send("Page.addScriptToEvaluateOnNewDocument", { source: init }, sessionId)
    if (url) await send("Page.navigate", { url }, sessionId)
  },
  async eval({ id, expression }) {
    return await evaluate(id, expression)
  },
  async until({ id, expression, within }) {
    const deadline = Date.now() + within
    let last
    do {
      try {
        if ((last = await evaluate(id, expression))) return
      } catch (err) {
        last = err // the page is going to another place
      }
      await new Promise(resolve => setTimeout(resolve, 50))
    } while (Date.now() < deadline)
    throw new Error(`not within ${within} ms: ${expression} (now ${last})`)
  },
  async front({ id }) {
    await send("Target.activateTarget", { targetId: tabs.get(id).targetId })
  },
  async life({ id, state }) {
    await send("Page.setWebLifecycleState", { state }, tabs.get(id).sessionId)
  },
  async close({ id }) {
    await send("Target.closeTarget", { targetId: tabs.get(id).targetId })
    tabs.delete(id)
  },
  async quit() {
    await send("Browser.close")
  },
})
