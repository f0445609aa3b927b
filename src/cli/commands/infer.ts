// asteroid infer: a data set through a pipeline of devices, outputs in the order of the inputs.

import type { Command } from 'commander';
import { defined } from '../../assert.ts';
import { systemClock } from '../../clock.ts';
import { InputError } from '../../errors.ts';
import type { CutTensor } from '../../graph/layers.ts';
import { inferHere, prepareInferenceHere } from '../../runtime/host/infer-here.ts';
import type { InferenceModel } from '../../runtime/run/infer.ts';
import { comparisonOf, windowOf } from '../../runtime/run/infer.ts';
import { type InferDataResult, inferData, type Samples } from '../../runtime/run/infer-data.ts';
import { type Compared, InferenceRounds } from '../../runtime/run/inference-rounds.ts';
import { sizedByData } from '../../runtime/run/subject.ts';
import { createOutputFile, type OutputFile } from '../../storage/node/output-files.ts';
import { openSamples, type SampleSource } from '../../storage/node/samples.ts';
import { bindDataset } from '../../training/data/bind.ts';
import { withCodeFile } from '../code-file.ts';
import { addInferenceFlags, type InferenceFlags, inferenceSettings, modelOf, planOf } from '../inference-flags.ts';
import { createOutput, interruptedExitCode, interruptSignal, type Output } from '../output.ts';
import { grouped } from '../terminal.ts';

interface InferOptions extends InferenceFlags {
  readonly data?: string;
  readonly out?: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addInfer(program: Command): Command {
  const command = program
    .command('infer')
    .description('compute a model over data, split over devices')
    .option(
      '--data <SPEC>',
      'the samples: a spec as of asteroid train, npy:FILE or npz:FILE without labels, or - for npy',
    )
    .option('-o, --out <FILE>', 'write the outputs to FILE.npz, FILE.npy, or - for stdout as npy');
  return addInferenceFlags(command)
    .addHelpText(
      'after',
      `
Examples:
  $ asteroid infer --model vit.onnx --data npz:pictures.npz -o out.npz --workers 3
  $ cat x.npy | asteroid infer --model net.onnx --data - -o - > y.npy`,
    )
    .action((options: InferOptions) => infer(options));
}

async function infer(options: InferOptions): Promise<void> {
  const toStdout = options.out === '-';
  if (toStdout && options.json === true)
    throw new InputError('-o - and --json both write to stdout: give -o a file, or leave out --json.');
  const plain = createOutput(toStdout ? { json: true } : options);
  const output = options.codeFile === undefined ? plain : withCodeFile(options.codeFile, plain);
  const signal = interruptSignal(output, 'Stopping when what is in flight is answered …');
  if (options.data === undefined) throw new InputError('--data is missing: give the samples to compute.');
  const loaded = await modelOf(options);
  const plan = await planOf(options);
  const samples = await openSamples(options.data, process.stdin);
  const model: InferenceModel = { ...loaded, graph: sizedByData(loaded.graph, samples.head) };
  const settings = inferenceSettings(options, model, plan, { most: samples.sampleCount });
  const run = prepareInferenceHere({ settings, model, ...(plan === undefined ? {} : { plan }) });
  // What does not fit is found before anybody computes.
  bindDataset(samples.head, run.sequence.inputs, { type: samples.head.labels.type });
  const file = options.out === undefined ? undefined : await openOutput(options.out, run.outputs, samples);
  const rounds = new InferenceRounds(comparisonOf(run));
  // On stdout there are only the outputs.
  const observe: Output['observe'] = toStdout ? () => {} : output.observe;
  const ending = new AbortController();
  signal.addEventListener('abort', () => ending.abort(), { once: true });
  const running = inferHere(run, rounds, { clock: systemClock, observe, signal: ending.signal });
  running.catch(() => {}); // every request fails with it
  const inferring = inferData({
    ...{
      rounds,
      clock: systemClock,
      output: defined(run.outputs[0], 'an output'),
      limit: windowOf(settings.cluster.localCount + settings.remoteCount) + 1,
    },
    ...(run.sequence.fixedBatch === undefined ? {} : { fixedBatch: run.sequence.fixedBatch }),
    samples: fitted(samples, run.sequence.inputs, plan?.batchSize ?? settings.batchSize, signal),
    write: async (outputs) => file?.write(outputs),
  });
  try {
    const [result] = await Promise.all([inferring, running]);
    const isWhole = result.sampleCount === samples.sampleCount;
    if (isWhole) await file?.finish();
    else await file?.discard();
    if (!toStdout) print({ ...result, compared: rounds.compared }, options.out, isWhole, output);
    if (!isWhole) process.exitCode = interruptedExitCode;
  } catch (error) {
    ending.abort();
    await Promise.all([file?.discard(), running.catch(() => {})]); // the first error is the one to report
    throw error;
  }
}

function openOutput(path: string, outputs: readonly CutTensor[], { sampleCount }: SampleSource): Promise<OutputFile> {
  const arrays = outputs.map(({ name, type, shape }) => ({
    ...{ name, type, shape: shape.map((size) => (size === 'N' ? sampleCount : size)) },
  }));
  return createOutputFile(path, arrays, process.stdout);
}

/** The samples as the model takes them; no more of them once the run is to stop. */
async function* fitted(
  samples: SampleSource,
  inputs: Parameters<typeof bindDataset>[1],
  size: number,
  signal: AbortSignal,
): AsyncGenerator<Samples> {
  const bind = (dataset: Parameters<typeof bindDataset>[0]): ReturnType<typeof bindDataset> =>
    bindDataset(dataset, inputs, { type: dataset.labels.type });
  for await (const { inputs: values, labels } of samples.chunks(size, bind)) {
    if (signal.aborted) return;
    yield samples.hasLabels ? { inputs: values, labels } : { inputs: values };
  }
}

type Printed = InferDataResult & { readonly compared: Compared | undefined };

function print(result: Printed, out: string | undefined, isWhole: boolean, output: Output): void {
  output.json({ event: isWhole ? 'done' : 'stopped', ...result, ...(out === undefined ? {} : { out }) });
  if (output.isJson) return;
  const { terminal } = output;
  const { sampleCount, samplesPerS, latencyMs, accuracy, compared } = result;
  terminal.section(isWhole ? 'Done' : 'Stopped', `${grouped(sampleCount)} samples, ${samplesPerS.toFixed(1)} a second`);
  const { p50, p95, p99 } = latencyMs;
  terminal.section(
    'Latency',
    `${p50.toFixed(0)} ms in the median, ${p95.toFixed(0)} of 95 %, ${p99.toFixed(0)} of 99 %`,
  );
  if (accuracy !== null) terminal.section('Accuracy', `${(accuracy * 100).toFixed(2)} %`);
  if (compared !== undefined) terminal.section('Outputs', errorText(compared));
  if (out !== undefined && isWhole) terminal.section('Outputs', out);
}

function errorText({ sampleCount, relative, changedFraction }: Compared): string {
  const percent = (fraction: number): string => `${(fraction * 100).toPrecision(2)} %`;
  return (
    `${percent(relative)} off those of activations as they are (norm), the largest is another in ` +
    `${percent(changedFraction)} (${sampleCount} samples compared)`
  );
}
