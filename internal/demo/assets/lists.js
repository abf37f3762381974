/** The frame log and the list of events, both bounded. */

/** @typedef {import('./measure.js').Kind} Kind */

const ROWS = 200
const EVENTS = 60

/** FrameLog is a table of the newest messages in the order they arrived. */
export class FrameLog {
  /** @type {HTMLTableRowElement[]} */
  #queue = []
  #count = 0

  /** @param {HTMLTableSectionElement} body */
  constructor(body) {
    this.body = body
  }

  /**
   * @param {number} offset
   * @param {Kind} kind
   * @param {boolean} stray
   * @param {number} seconds
   */
  add(offset, kind, stray, seconds) {
    const row = document.createElement('tr')
    if (stray) row.className = 'out-of-place'
    const cells = [String(++this.#count), String(offset), kind, seconds.toFixed(3)]
    cells.forEach((text, i) => {
      const cell = document.createElement('td')
      if (i === 2) {
        const badge = document.createElement('span')
        badge.className = `kind ${kind}`
        badge.textContent = text
        cell.append(badge)
      } else cell.textContent = text
      row.append(cell)
    })
    this.#queue.push(row)
    if (this.#queue.length > ROWS) this.#queue.shift()
  }

  clear() {
    this.#queue = []
    this.#count = 0
    this.body.replaceChildren()
  }

  /** flush draws what was added, the newest on top. */
  flush() {
    if (!this.#queue.length) return
    this.body.prepend(...this.#queue.reverse())
    this.#queue = []
    while (this.body.rows.length > ROWS) this.body.lastElementChild?.remove()
  }
}

/**
 * EventList tells what happened, the newest on top. Events of one topic that
 * follow each other share a line, whose text is told anew each time.
 */
export class EventList {
  /** @type {{ topic: string, item: HTMLLIElement, time: HTMLElement, words: HTMLElement } | null} */
  #last = null

  /** @param {HTMLElement} list */
  constructor(list) {
    this.list = list
  }

  /**
   * @param {string} tone of the mark in front: ok, warn, bad or plain
   * @param {string} text
   * @param {string} seconds
   * @param {string} [topic] lines of one topic replace each other
   */
  add(tone, text, seconds, topic = '') {
    if (topic && this.#last?.topic === topic) {
      const { item, time, words } = this.#last
      item.className = tone
      time.textContent = seconds
      words.textContent = text
      return
    }
    const item = document.createElement('li')
    item.className = tone
    const time = document.createElement('span')
    time.className = 'time'
    time.textContent = seconds
    const words = document.createElement('span')
    words.textContent = text
    item.append(time, words)
    this.list.prepend(item)
    while (this.list.childElementCount > EVENTS) this.list.lastElementChild?.remove()
    this.#last = { topic, item, time, words }
  }

  clear() {
    this.#last = null
    this.list.replaceChildren()
  }
}
