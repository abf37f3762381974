// Debian's Chromium, driven by playwright-core: pages in tabs, the network
// switched off, tabs frozen, and everything a page complains about.
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { chromium } from "playwright-core"
import { emit, serve } from "./lines.mjs"

const data = mkdtempSync(join(tmpdir(), "chronocast-chromium-"))
const context = await chromium.launchPersistentContext(data, {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  headless: true,
  viewport: { width: 1280, height: 900 },
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
  // Playwright switches the back/forward cache off unless it is told not to.
  ignoreDefaultArgs: ["--disable-back-forward-cache"],
})
process.on("exit", () => rmSync(data, { recursive: true, force: true, maxRetries: 3 }))

const tabs = new Map()
const devtools = new Map()

serve({
  /** Opens a tab and listens to what it complains about. */
  async open({ id, url, init, scheme }) {
    const page = await context.newPage()
    tabs.set(id, page)
    if (scheme) await page.emulateMedia({ colorScheme: scheme })
    page.on("console", m => {
      if (m.type() === "error" || m.type() === "warning") emit("complaint", { id, kind: m.type(), text: m.text(), url: m.location().url })
    })
    page.on("pageerror", e => emit("complaint", { id, kind: "exception", text: String(e?.stack ?? e) }))
    page.on("crash", () => emit("complaint", { id, kind: "crash", text: "the tab crashed" }))
    page.on("websocket", ws => {
      emit("dial", { id, url: ws.url() })
      ws.on("close", () => emit("shut", { id }))
    })
    await page.addInitScript(() => {
      addEventListener("securitypolicyviolation", e => console.error("content policy violated: " + e.violatedDirective + " by " + e.blockedURI))
      addEventListener("pageshow", e => (globalThis.cameBackFromCache = e.persisted))
    })
    if (init) await page.addInitScript(init)
    if (url) await page.goto(url, { waitUntil: "load" })
  },
  async goto({ id, url }) {
    await tabs.get(id).goto(url, { waitUntil: "load" })
  },
  async reload({ id }) {
    await tabs.get(id).reload({ waitUntil: "load" })
  },
  async back({ id }) {
    await tabs.get(id).goBack({ waitUntil: "commit" })
  },
  async forward({ id }) {
    await tabs.get(id).goForward({ waitUntil: "commit" })
  },
  async eval({ id, expression }) {
    for (let tries = 1; ; tries++) {
      try {
        return await tabs.get(id).evaluate(expression)
      } catch (err) {
        // The page was on its way to another place; ask that one.
        if (tries === 4 || !/Execution context was destroyed/.test(String(err))) throw err
        await tabs.get(id).waitForLoadState("domcontentloaded")
      }
    }
  },
  async until({ id, expression, within }) {
    // The page's policy forbids eval, which waitForFunction would use.
    const deadline = Date.now() + within
    let last
    do {
      try {
        if ((last = await tabs.get(id).evaluate(expression))) return
      } catch (err) {
        last = err // the page is going to another place
      }
      await new Promise(resolve => setTimeout(resolve, 50))
    } while (Date.now() < deadline)
    throw new Error(`not within ${within} ms: ${expression} (now ${last})`)
  },
  async click({ id, selector }) {
    await tabs.get(id).click(selector, { timeout: 10_000 })
  },
  async press({ id, key }) {
    await tabs.get(id).keyboard.press(key)
  },
  async size({ id, width, height }) {
    await tabs.get(id).setViewportSize({ width, height })
  },
  async offline({ id, on }) {
    // The network of this tab alone, sockets that are open among it.
    const session = await debug(id)
    await session.send("Network.enable")
    await session.send("Network.emulateNetworkConditions", { offline: on, latency: 0, downloadThroughput: -1, uploadThroughput: -1 })
  },
  async life({ id, state }) {
    const session = await debug(id)
    await session.send("Page.setWebLifecycleState", { state })
  },
  async front({ id }) {
    await tabs.get(id).bringToFront()
  },
  async shot({ id, path }) {
    await tabs.get(id).screenshot({ path, fullPage: true })
  },
  async close({ id }) {
    await tabs.get(id).close()
    tabs.delete(id)
    devtools.delete(id)
  },
  async quit() {
    await context.close()
  },
})

async function debug(id) {
  let session = devtools.get(id)
  if (!session) devtools.set(id, (session = await context.newCDPSession(tabs.get(id))))
  return session
}
