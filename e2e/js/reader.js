// Runs in every page of the browser tests that read streams without the demo:
// gives the page a client of the server's own /client.js and keeps what every
// handle was given.
globalThis.readers = {}
globalThis.startReader = async (id, url, name, after, options = {}) => {
  const { createClient } = await import("/client.js")
  const client = (globalThis.client ??= createClient(url, { minDelay: 50, maxDelay: 500, ...options }))
  const stream = client.stream(name, { after })
  const reader = (globalThis.readers[id] = { got: [], states: [], resets: 0, errors: [], stream, client })
  stream.on("message", m => {
    reader.got.push([name, m.epoch, m.offset, JSON.stringify(m.data), m.replayed])
    document.body.textContent = m.offset
  })
  stream.on("state", s => reader.states.push([s, Date.now()]))
  stream.on("reset", () => reader.resets++)
  stream.on("error", e => reader.errors.push(String(e)))
}
