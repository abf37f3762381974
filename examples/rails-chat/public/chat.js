// Keeps the newest message in view for those who are at the end.
const atTheEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 80
addEventListener("turbo:load", () => document.getElementById("messages")?.lastElementChild && scrollTo(0, document.documentElement.scrollHeight))
addEventListener("turbo:before-stream-render", event => {
  if (!atTheEnd()) return
  const { render } = event.detail
  event.detail.render = async stream => {
    await render(stream)
    scrollTo(0, document.documentElement.scrollHeight)
  }
})
