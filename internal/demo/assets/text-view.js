/**
 * TextView renders a text that comes in pieces: headings, lists, paragraphs.
 * It draws on flush(), once per frame, however many pieces came in between.
 *
 * No character is left out: the markers ("## ", "- ") are there, only not
 * shown, so textContent of the element is the text, byte for byte.
 */
export class TextView {
  /** @type {{ text: string, stray: boolean }[]} */
  #queue = []
  /** @type {HTMLElement | null} */
  #list = null
  /** @type {HTMLElement | null} block of the current line */
  #block = null
  /** pieces of a line that may yet turn out to be a list item or a heading
   * @type {{ text: string, stray: boolean }[]} */
  #undecided = []
  #pinned = true

  /**
   * @param {HTMLElement} element
   * @param {HTMLElement} scroller follows the end of the text unless the reader has scrolled away from it
   */
  constructor(element, scroller) {
    this.element = element
    this.scroller = scroller
    scroller.addEventListener('scroll', () => {
      this.#pinned = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 32
    }, { passive: true })
  }

  /**
   * @param {string} text
   * @param {boolean} [stray] to be marked
   */
  append(text, stray = false) {
    this.#queue.push({ text, stray })
  }

  get text() {
    this.flush()
    return this.element.textContent ?? ''
  }

  clear() {
    this.#queue = []
    this.#undecided = []
    this.#list = this.#block = null
    this.#pinned = true
    this.element.replaceChildren()
  }

  flush() {
    if (!this.#queue.length) return
    const pieces = this.#queue
    this.#queue = []
    for (const { text, stray } of pieces) {
      const [first = '', ...rest] = text.split('\n')
      this.#write(first, stray)
      for (const part of rest) {
        this.#endLine()
        this.#write(part, stray)
      }
    }
    if (this.#pinned) this.scroller.scrollTop = this.scroller.scrollHeight
  }

  #endLine() {
    if (this.#undecided.length) this.#place(this.#line('p'), 0)
    this.#block = null
    const end = this.#list ?? this.element
    end.append('\n')
  }

  /**
   * @param {string} text
   * @param {boolean} stray
   */
  #write(text, stray) {
    if (!text) return
    if (this.#block && !this.#undecided.length) return put(this.#block, text, stray)
    this.#undecided.push({ text, stray })
    const line = this.#undecided.map((piece) => piece.text).join('')
    const marker = /^(?:(#{1,3})|(-)|(\d{1,2})\.) /.exec(line)
    if (marker) {
      const [all, heading, dash] = marker
      this.#place(this.#line(heading ? 'h3' : dash ? 'ul' : 'ol', Number(marker[3])), all.length)
    } else if (!/^(?:#{1,3}|-|\d{1,2}\.?)$/.test(line)) {
      this.#place(this.#line('p'), 0)
    } else {
      // Shown as it is for the moment it takes to know.
      this.#block?.remove()
      this.#block = document.createElement('p')
      this.element.append(this.#block)
      for (const piece of this.#undecided) put(this.#block, piece.text, piece.stray)
    }
  }

  /**
   * line makes the block of the current line.
   *
   * @param {string} tag
   * @param {number} [start] number of the first item of a list
   */
  #line(tag, start) {
    this.#block?.remove()
    if (tag !== 'ul' && tag !== 'ol') {
      this.#list = null
      const block = document.createElement(tag)
      this.element.append(block)
      return block
    }
    if (this.#list?.localName !== tag) {
      this.#list = document.createElement(tag)
      if (start !== undefined && tag === 'ol') /** @type {HTMLOListElement} */ (this.#list).start = start
      this.element.append(this.#list)
    }
    const item = document.createElement('li')
    this.#list.append(item)
    return item
  }

  /**
   * place writes the undecided pieces into their block, the first so many
   * characters as a marker.
   *
   * @param {HTMLElement} block
   * @param {number} marker
   */
  #place(block, marker) {
    this.#block = block
    if (marker) {
      const span = document.createElement('span')
      span.className = 'marker'
      span.setAttribute('aria-hidden', 'true')
      block.append(span)
      for (const { text } of this.#undecided) {
        span.append(text.slice(0, Math.max(0, marker - (span.textContent ?? '').length)))
      }
    }
    for (const { text, stray } of this.#undecided) {
      const rest = text.slice(marker)
      marker = Math.max(0, marker - text.length)
      if (rest) put(block, rest, stray)
    }
    this.#undecided = []
  }
}

/**
 * put adds text at the end of a block. Unmarked pieces grow one text node.
 *
 * @param {HTMLElement} block
 * @param {string} text
 * @param {boolean} stray
 */
function put(block, text, stray) {
  const last = block.lastChild
  if (stray) {
    const span = document.createElement('span')
    span.className = 'stray'
    span.textContent = text
    block.append(span)
  } else if (last?.nodeType === Node.TEXT_NODE) {
    /** @type {Text} */ (last).appendData(text)
  } else {
    block.append(text)
  }
}
