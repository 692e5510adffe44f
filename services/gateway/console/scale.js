// Axes: from values to places, with ticks at round numbers.

/** {place(value), ticks}: `low`..`high` of the values onto `from`..`to` of the drawing. */
export function linear(values, from, to, count) {
  let [low, high] = bounds(values);
  if (low === high) [low, high] = low === 0 ? [-1, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
  const step = roundStep((high - low) / count);
  low = Math.floor(low / step) * step;
  high = Math.ceil(high / step) * step;
  const ticks = [];
  for (let n = 0; n <= Math.round((high - low) / step); n += 1) ticks.push(Number((low + n * step).toPrecision(12)));
  return { place: (value) => from + ((value - low) / (high - low)) * (to - from), ticks };
}

/** Of positive values only. */
export function logarithmic(values, from, to) {
  const [low, high] = bounds(values.map(Math.log10));
  const first = Math.floor(low);
  const last = Math.max(first + 1, Math.ceil(high));
  const every = Math.ceil((last - first) / 8);
  const ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(10 ** power);
  const place = (value) => from + ((Math.log10(value) - first) / (last - first)) * (to - from);
  return { place, ticks };
}

/** Whole numbers from the first to the last; the ticks lie between. */
export function steps(values, from, to, count) {
  let [low, high] = bounds(values);
  if (low === high) [low, high] = [low - 1, high + 1];
  const step = Math.max(1, roundStep((high - low) / count));
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) if (tick >= 1) ticks.push(tick);
  return { place: (value) => from + ((value - low) / (high - low)) * (to - from), ticks };
}

function bounds(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  const part = rough / power;
  return (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10) * power;
}
