// Keeps the newest message in view for those who are at the end, once a frame
// for all that came together: to scroll is to lay out the whole page.
const page = document.documentElement
let following = true
let due = false

function follow() {
  if (!following || due) return
  due = true
  requestAnimationFrame(() => {
    due = false
    scrollTo(0, page.scrollHeight)
  })
}

addEventListener("scroll", () => (following = innerHeight + scrollY >= page.scrollHeight - 80), { passive: true })
addEventListener("turbo:load", () => {
  following = true
  follow()
})
addEventListener("turbo:before-stream-render", event => {
  const { render } = event.detail
  event.detail.render = async stream => {
    await render(stream)
    follow()
  }
})
