// What a server has done, as Prometheus reads it (text format 0.0.4).

import type { Compared } from './inference-rounds.ts';

/** Upper bounds of the time of a request, in seconds, and of the samples of a round. */
const [secondBounds, sampleBounds] = [
  [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
  [1, 2, 4, 8, 16, 32, 64, 128],
];

/** What is read when it is asked for. */
export interface ServeGauges {
  readonly queuedSamples: number;
  readonly openRounds: number;
  readonly devices: number;
  readonly isReady: boolean;
  readonly residentBytes: number;
  /** Absent where activations travel as they are, or nothing was compared yet. */
  readonly compared?: Compared | undefined;
}

export class ServeMetrics {
  readonly #requests = new Map<number, number>();
  readonly #seconds = new Histogram(secondBounds);
  readonly #samples = new Histogram(sampleBounds);
  #layoutChanges = 0;

  /** A request for inference has been answered. */
  answered(status: number, seconds: number): void {
    this.#requests.set(status, (this.#requests.get(status) ?? 0) + 1);
    this.#seconds.add(seconds);
  }

  round(sampleCount: number): void {
    this.#samples.add(sampleCount);
  }

  layoutChanged(): void {
    this.#layoutChanges++;
  }

  text(gauges: ServeGauges): string {
    const lines: string[] = [];
    const metric = (name: string, type: string, help: string, values: readonly (readonly [string, number])[]): void => {
      lines.push(`# HELP asteroid_${name} ${help}`, `# TYPE asteroid_${name} ${type}`);
      for (const [suffix, value] of values) lines.push(`asteroid_${name}${suffix} ${value}`);
    };
    const byCode = [...this.#requests].sort(([a], [b]) => a - b);
    metric(
      'requests_total',
      'counter',
      'Requests for inference, by status.',
      byCode.map(([code, count]) => [`{code="${code}"}`, count]),
    );
    metric('request_seconds', 'histogram', 'From the whole request to its answer.', this.#seconds.values());
    metric('round_samples', 'histogram', 'Samples that went through the pipeline together.', this.#samples.values());
    metric('layout_changes_total', 'counter', 'Times that work was shared out anew.', [['', this.#layoutChanges]]);
    metric('queued_samples', 'gauge', 'Samples that wait.', [['', gauges.queuedSamples]]);
    metric('open_rounds', 'gauge', 'Rounds in the pipeline.', [['', gauges.openRounds]]);
    metric('devices', 'gauge', 'Devices that are there.', [['', gauges.devices]]);
    metric('ready', 'gauge', '1 if requests are taken.', [['', gauges.isReady ? 1 : 0]]);
    const { compared } = gauges;
    if (compared !== undefined)
      metric('output_error_ratio', 'gauge', 'Error of outputs by activations in fewer bits, for a sample, as a norm.', [
        ['', compared.relative],
      ]);
    metric('resident_bytes', 'gauge', 'Memory of the process.', [['', gauges.residentBytes]]);
    return `${lines.join('\n')}\n`;
  }
}

class Histogram {
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

  values(): (readonly [string, number])[] {
    return [
      ...this.#bounds.map((bound, index) => [`_bucket{le="${bound}"}`, this.#counts[index] ?? 0] as const),
      ['_bucket{le="+Inf"}', this.#count],
      ['_sum', this.#sum],
      ['_count', this.#count],
    ];
  }
}
