/**
 * backoff returns how long to wait before the given attempt, counted from 0:
 * anything from nothing to a window that doubles with each attempt. The whole
 * window is drawn from (full jitter), so that clients cut off together do not
 * come back together.
 *
 * @param {number} attempt
 * @param {number} random from 0 inclusive to 1 exclusive
 * @param {number} min window of attempt 0, in milliseconds
 * @param {number} max no window is wider than this
 */
export const backoff = (attempt, random, min, max) => random * Math.min(max, min * 2 ** attempt)
