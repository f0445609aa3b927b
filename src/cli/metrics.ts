// --metrics: a training run answers Prometheus.

import { systemClock } from '../clock.ts';
import { startMetricsServer } from '../runtime/host/metrics-server.ts';
import type { Observer } from '../runtime/protocol/events.ts';
import type { PreparedRun } from '../runtime/run/prepare.ts';
import { TrainMetrics } from '../runtime/run/train-metrics.ts';
import { addressAndPort } from './flag-values.ts';
import type { Output } from './output.ts';

/** The environment variable that carries the token. */
const tokenVariable = 'ASTEROID_METRICS_TOKEN';

/** Metrics of a run, while they are answered. */
export interface AnsweredMetrics {
  readonly observe: Observer;
  close(): Promise<void>;
}

/** Begins to answer at ADDRESS:PORT, and prints where. Throws InputError where that cannot be. */
export async function answerMetrics(
  at: string,
  { model, settings }: PreparedRun,
  output: Output,
): Promise<AnsweredMetrics> {
  const metrics = new TrainMetrics(model.name, systemClock);
  const token = process.env[tokenVariable];
  const server = await startMetricsServer({
    ...addressAndPort('--metrics', at),
    insecure: settings.insecure,
    ...(token === undefined || token === '' ? {} : { token }),
    metrics: () => metrics.text(process.memoryUsage.rss()),
  });
  const { url, authorityFile } = server;
  output.json({
    ...{ event: 'metrics', url },
    ...(server.token === undefined ? {} : { token: server.token }),
    ...(authorityFile === undefined ? {} : { authorityFile }),
  });
  if (!output.isJson) {
    output.terminal.section('Metrics', url);
    if (server.token !== undefined && token === undefined)
      output.terminal.section('Token', `Authorization: Bearer ${server.token} (or set ${tokenVariable})`);
    if (authorityFile !== undefined) output.terminal.section('Trust', `ca_file: ${authorityFile}`);
  }
  return { observe: (event) => metrics.observe(event), close: () => server.close() };
}
