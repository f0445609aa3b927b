// Metrics in the text format of Prometheus, version 0.0.4, under names that begin with asteroid_.

/** Of a value: its labels. */
export type Labels = Readonly<Record<string, string>>;

/** What an HTTP answer with metrics is. */
export const prometheusType = 'text/plain; version=0.0.4; charset=utf-8';

/** Collects metrics for one answer. */
export class PrometheusText {
  readonly #lines: string[] = [];

  /** A number that only rises. `name` ends with _total. */
  counter(name: string, help: string, values: Values): void {
    this.#metric(name, 'counter', help, named(values));
  }

  gauge(name: string, help: string, values: Values): void {
    this.#metric(name, 'gauge', help, named(values));
  }

  histogram(name: string, help: string, histogram: Histogram): void {
    this.#metric(name, 'histogram', help, histogram.values());
  }

  toString(): string {
    return `${this.#lines.join('\n')}\n`;
  }

  #metric(name: string, type: string, help: string, values: readonly (readonly [string, number])[]): void {
    this.#lines.push(`# HELP asteroid_${name} ${help}`, `# TYPE asteroid_${name} ${type}`);
    for (const [suffix, value] of values) this.#lines.push(`asteroid_${name}${suffix} ${numeral(value)}`);
  }
}

/** One value, or one for each set of labels. */
type Values = number | readonly (readonly [Labels, number])[];

function named(values: Values): (readonly [string, number])[] {
  if (typeof values === 'number') return [['', values]];
  return values.map(([labels, value]) => [labelled(labels), value]);
}

function labelled(labels: Labels): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${escaped(value)}"`);
  return pairs.length === 0 ? '' : `{${pairs.join(',')}}`;
}

function escaped(value: string): string {
  return value.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n');
}

function numeral(value: number): string {
  if (Number.isFinite(value)) return String(value);
  return Number.isNaN(value) ? 'NaN' : value > 0 ? '+Inf' : '-Inf';
}

/** Counts of values up to each bound, and their sum. */
export class Histogram {
  readonly #bounds: readonly number[];
  readonly #counts: number[];
  #sum = 0;
  #count = 0;

  constructor(bounds: readonly number[]) {
    this.#bounds = bounds;
    this.#counts = bounds.map(() => 0);
  }

  add(value: number): void {
    this.#sum += value;
    this.#count++;
    for (const [index, bound] of this.#bounds.entries())
      if (value <= bound) this.#counts[index] = (this.#counts[index] ?? 0) + 1;
  }

  /** By what follows the metric's name. */
  values(): (readonly [string, number])[] {
    return [
      ...this.#bounds.map((bound, index) => [`_bucket{le="${bound}"}`, this.#counts[index] ?? 0] as const),
      ['_bucket{le="+Inf"}', this.#count],
      ['_sum', this.#sum],
      ['_count', this.#count],
    ];
  }
}
