/** Everything beside the answer: theme, recipes with their copy buttons, the hello stream. */

const HELLO = 'hello'
const SHOWN = 6
const THEMES = ['auto', 'light', 'dark']

/** @param {string} id @returns {any} */
const $ = (id) => document.getElementById(id)

/** @param {any} client */
export function setUpAside(client) {
  setUpTheme()
  setUpRecipes()
  setUpHello(client)
}

function setUpTheme() {
  const root = document.documentElement
  const show = () => ($('theme-name').textContent = root.dataset.theme ?? 'auto')
  show()
  $('theme').addEventListener('click', () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? 'auto') + 1) % THEMES.length] ?? 'auto'
    if (next === 'auto') delete root.dataset.theme
    else root.dataset.theme = next
    try {
      if (next === 'auto') localStorage.removeItem('chronocast-theme')
      else localStorage.setItem('chronocast-theme', next)
    } catch {
      // storage is off: the choice holds for this page
    }
    show()
  })
}

function setUpRecipes() {
  const { origin } = location
  const cable = origin.replace(/^http/, 'ws') + '/cable'
  $('snippet').textContent = [
    `<script type="module">`,
    `  import { createClient } from "${origin}/client.js"`,
    `  const stream = createClient("${cable}").stream("${HELLO}", { after: "start" })`,
    `  stream.on("message", m => console.log(m.offset, m.data))`,
    `</script>`,
  ].join('\n')
  $('curl').textContent = `curl ${origin}/streams/${HELLO}/messages \\\n  -H 'Content-Type: text/plain' -d 'Hello, 世界 👋'`
  for (const button of document.querySelectorAll('button[data-copy]')) {
    const label = /** @type {Text} */ (button.firstChild)
    button.addEventListener('click', async () => {
      const code = $(/** @type {HTMLElement} */ (button).dataset.copy ?? '')
      try {
        await navigator.clipboard.writeText(code.textContent)
        label.data = 'Copied'
      } catch {
        getSelection()?.selectAllChildren(code)
        label.data = 'Selected'
      }
      setTimeout(() => (label.data = 'Copy'), 2000)
    })
  }
}

/** @param {any} client */
function setUpHello(client) {
  const list = $('hello')
  client.stream(HELLO).on('message', (/** @type {{ data: unknown, offset: number }} */ { data, offset }) => {
    list.querySelector('.empty')?.remove()
    const item = document.createElement('li')
    const place = document.createElement('span')
    place.className = 'time'
    place.textContent = String(offset)
    const words = document.createElement('span')
    words.textContent = (typeof data === 'string' ? data : JSON.stringify(data)).slice(0, 400)
    item.append(place, words)
    list.append(item)
    while (list.childElementCount > SHOWN) list.firstElementChild?.remove()
  })
}
