// What a server has done, as Prometheus reads it.

import type { Compared } from './inference-rounds.ts';
import { Histogram, PrometheusText } from './prometheus-text.ts';

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
    const text = new PrometheusText();
    const byCode = [...this.#requests].sort(([a], [b]) => a - b);
    text.counter(
      'requests_total',
      'Requests for inference, by status.',
      byCode.map(([code, count]) => [{ code: String(code) }, count]),
    );
    text.histogram('request_seconds', 'From the whole request to its answer.', this.#seconds);
    text.histogram('round_samples', 'Samples that went through the pipeline together.', this.#samples);
    text.counter('layout_changes_total', 'Times that work was shared out anew.', this.#layoutChanges);
    text.gauge('queued_samples', 'Samples that wait.', gauges.queuedSamples);
    text.gauge('open_rounds', 'Rounds in the pipeline.', gauges.openRounds);
    text.gauge('devices', 'Devices that are there.', gauges.devices);
    text.gauge('ready', '1 if requests are taken.', gauges.isReady ? 1 : 0);
    const { compared } = gauges;
    if (compared !== undefined) {
      const help = 'Error of outputs by activations in fewer bits, for a sample, as a norm.';
      text.gauge('output_error_ratio', help, compared.relative);
    }
    text.gauge('resident_bytes', 'Memory of the process.', gauges.residentBytes);
    return text.toString();
  }
}
