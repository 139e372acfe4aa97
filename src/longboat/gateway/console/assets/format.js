// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]];

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** A number with its noun: `1 replica`, `3 replicas`. */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  for (const [size, unit] of UNITS) if (value >= size) return `${(value / (size === 1e4 ? 1e3 : size)).toFixed(1)}${unit}`;
  return value >= 100 || Number.isInteger(value) ? whole.format(value) : value.toFixed(1);
}

export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value < 0.001) return value === 0 ? "0 ms" : "<1 ms";
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.1 ? 1 : 0)} ms`;
  if (value < 90) return `${value.toFixed(value < 10 ? 2 : 0)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${Math.round(value / 86400)} d`;
}

export const ms = (value) => (value === null || value === undefined ? "–" : seconds(value / 1e3));

export function bytes(value) {
  if (!value) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  const scaled = value / 2 ** (10 * power);
  return `${scaled < 10 ? scaled.toFixed(1) : Math.round(scaled)} ${units[power]}`;
}

export const percent = (value) => (value === null || value === undefined || Number.isNaN(value) ? "–" : `${Math.round(value * 100)}%`);

export function usd(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value >= 1000) return `$${short(value)}`;
  return `$${value.toFixed(value >= 100 ? 0 : value >= 0.1 ? 2 : 3)}`;
}

/** An amount of money, with cents, or more digits where cents would hide it. */
export function money(value, currency) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const digits = value !== 0 && value < 0.1 ? 4 : 2;
  return `${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits })} ${currency}`.trim();
}

export const clock = (unix) => new Date(unix * 1e3).toLocaleTimeString("en-GB");

export const day = (unix) => (unix ? new Date(unix * 1e3).toISOString().slice(0, 10) : "–");

/** The value below which `share` of the observations lie. counts: one for each bucket, one above, and the sum. */
export function quantile(bounds, counts, share) {
  const buckets = counts.slice(0, bounds.length + 1);
  const total = buckets.reduce((sum, number) => sum + number, 0);
  if (total <= 0) return null;
  let left = share * total;
  for (let index = 0; index < buckets.length; index++) {
    if (buckets[index] > 0 && left <= buckets[index]) {
      const low = index === 0 ? 0 : bounds[index - 1];
      const high = index < bounds.length ? bounds[index] : bounds[bounds.length - 1];
      return low + (high - low) * (left / buckets[index]);
    }
    left -= buckets[index];
  }
  return bounds[bounds.length - 1];
}
