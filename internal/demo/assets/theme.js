// Runs before the first paint, so that a chosen theme does not flash.
;(() => {
  let theme = null
  try {
    theme = localStorage.getItem('chronocast-theme')
  } catch {
    // storage is off: the system's theme it is
  }
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme
})()
