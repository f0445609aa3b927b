// asteroid serve: a pipeline of devices behind the Open Inference Protocol.

import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import { InputError } from '../../errors.ts';
import { prepareInferenceHere } from '../../runtime/host/infer-here.ts';
import { type ServeSettings, type Serving, serveHere } from '../../runtime/host/serve-here.ts';
import type { RunEvent } from '../../runtime/protocol/events.ts';
import type { InferenceSettings } from '../../runtime/run/infer.ts';
import { withCodeFile } from '../code-file.ts';
import { addressAndPort, positive } from '../flag-values.ts';
import { addInferenceFlags, type InferenceFlags, inferenceSettings, modelOf, planOf } from '../inference-flags.ts';
import { createOutput, interruptSignal, type Output } from '../output.ts';
import { version } from '../version.ts';
import { addDashboardFlag, createRunWindow, type DashboardFlag, isDashboardWanted } from '../window.ts';

interface ServeOptions extends InferenceFlags, DashboardFlag {
  readonly listen: string;
  readonly maxLatency: string;
  readonly maxBody: string;
  readonly queue: string;
  readonly timeout: string;
  readonly httpCert?: string;
  readonly httpKey?: string;
  readonly json?: boolean;
}

/** The environment variable that carries the token. */
const tokenVariable = 'ASTEROID_SERVE_TOKEN';

/** Adds the command. */
export function addServe(program: Command): Command {
  const command = program
    .command('serve')
    .description('answer requests for a model over HTTP (Open Inference Protocol), split over devices')
    .option('--listen <ADDRESS:PORT>', 'where to answer', '127.0.0.1:8000')
    .option('--max-latency <MS>', 'requests wait for each other only as long as this allows', '100')
    .option('--max-body <MiB>', 'the largest request; larger ones get 413', '64')
    .option('--queue <N>', 'samples that may wait; more get 429', '256')
    .option('--timeout <S>', 'seconds for a request to come, and for its answer', '30')
    .option('--http-cert <FILE>', "an own certificate (PEM) for HTTP, instead of the cluster's")
    .option('--http-key <FILE>', 'its key (PEM)');
  return addInferenceFlags(addDashboardFlag(command))
    .addHelpText(
      'after',
      `
Beyond this machine, answers are encrypted and callers show a token: ${tokenVariable}, or one that is made
and printed.

Example:
  $ asteroid serve --model vit.onnx --workers 3
  $ curl -s http://127.0.0.1:8000/v2/models/vit`,
    )
    .action((options: ServeOptions) => serve(options));
}

async function serve(options: ServeOptions): Promise<void> {
  const plain = createOutput(options);
  const output = options.codeFile === undefined ? plain : withCodeFile(options.codeFile, plain);
  const signal = interruptSignal(output, 'Answering what has come, then ending; Ctrl-C again ends at once …');
  const settings = serveSettings(options);
  const model = await modelOf(options);
  const plan = await planOf(options);
  const runSettings = inferenceSettings(options, model, plan, { usualCount: 1, isAnySize: true });
  checkQueue(settings, runSettings);
  const run = prepareInferenceHere({
    settings: runSettings,
    model,
    ...(plan === undefined ? {} : { plan }),
  });
  const stopping = new AbortController();
  const observe = (event: RunEvent): void => {
    output.observe(event);
    window?.observe(event);
  };
  const window = isDashboardWanted(options, output, true)
    ? await createRunWindow(model.name, output, { record: observe, stop: () => stopping.abort(), optimizerState: 0 })
    : undefined;
  await serveHere(run, settings, {
    ...{ clock: systemClock, observe, signal: AbortSignal.any([signal, stopping.signal]) },
    ...(window && { guests: window }),
    onServing: (serving) => announce(serving, model.name, output),
    onReady: () => {
      output.json({ event: 'ready' });
      if (!output.isJson) output.terminal.section('Ready', 'requests are answered');
    },
  }).finally(() => window?.close());
}

/** A round's samples wait in the queue before they go: a shorter queue would refuse whole batches. */
function checkQueue({ queueLimit }: ServeSettings, { batchSize }: InferenceSettings): void {
  if (queueLimit < batchSize)
    throw new InputError(
      `--queue ${queueLimit} has no room for a batch of ${batchSize} samples: raise --queue, or lower --batch.`,
    );
}

function serveSettings(options: ServeOptions): ServeSettings {
  const { host, port } = addressAndPort('--listen', options.listen);
  if ((options.httpCert === undefined) !== (options.httpKey === undefined))
    throw new InputError('--http-cert and --http-key go together: give both, or neither.');
  const token = process.env[tokenVariable];
  return {
    ...{ host, port, version, insecure: options.insecure === true },
    ...(token === undefined || token === '' ? {} : { token }),
    ...(options.httpCert === undefined ? {} : { tlsCert: options.httpCert }),
    ...(options.httpKey === undefined ? {} : { tlsKey: options.httpKey }),
    maxLatencyMs: positive('--max-latency', options.maxLatency),
    mostBodyMiB: positive('--max-body', options.maxBody),
    queueLimit: positive('--queue', options.queue),
    timeoutMs: 1000 * positive('--timeout', options.timeout),
  };
}

function announce({ url, token, authorityFile }: Serving, model: string, output: Output): void {
  output.json({
    event: 'serving',
    ...{ url, model },
    ...(token === undefined ? {} : { token }),
    ...(authorityFile === undefined ? {} : { authorityFile }),
  });
  if (output.isJson) return;
  const { terminal } = output;
  terminal.section('Serving', `${url}/v2/models/${encodeURIComponent(model)}`);
  if (token !== undefined) terminal.section('Token', `Authorization: Bearer ${token}`);
  if (authorityFile !== undefined) terminal.section('Trust', `curl --cacert ${authorityFile}`);
}
