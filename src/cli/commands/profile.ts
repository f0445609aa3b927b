// asteroid profile: measures each layer of a model on this device and writes the profile that `plan` and `simulate`
// read.

import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import type { Profile } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { measureHere } from '../../runtime/host/profile-here.ts';
import { checkWritable, writeJson } from '../files.ts';
import { engineName, positive } from '../flag-values.ts';
import { addSizeFlags, checkStates, loadSizedModel, type SizeOptions } from '../model-options.ts';
import { createOutput, type Output } from '../output.ts';
import { addSettingFlags } from '../settings.ts';
import { bar, command, counted, labelWidth, type Terminal } from '../terminal.ts';

interface ProfileCommandOptions extends SizeOptions {
  readonly model?: string;
  readonly batch: string;
  readonly device: string;
  readonly output?: string;
  readonly threads: string;
  readonly engine: string;
  readonly headClasses?: string;
  readonly freeze?: readonly string[];
  readonly freezeAllBut?: readonly string[];
  readonly train?: readonly string[];
  readonly batchNorm?: string;
  readonly tangents?: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addProfile(program: Command): Command {
  const command = program
    .command('profile')
    .description("measure a model's layers on this device")
    .option('--model <FILE>', 'an ONNX model, or the name of a built-in one')
    .option('--batch <N>', 'the largest batch size to measure', '32')
    .option('--device <NAME>', 'how the device, or its kind, is called in the profile', 'this-device')
    .option('--threads <N>', 'compute threads', '1')
    .option('--engine <NAME>', 'onnxruntime | reference', 'onnxruntime')
    .option('--tangents <N>', 'measure passes with N tangents, too, for plans with --mode forward-gradient')
    .option('-o, --output <FILE>', 'write the profile as JSON');
  addSettingFlags(command, ['headClasses', 'freeze', 'freezeAllBut', 'train', 'batchNorm']);
  return addSizeFlags(command)
    .addHelpText('after', '\nExample:\n  $ asteroid profile --model net.onnx --batch 32 -o profile.json')
    .action((options: ProfileCommandOptions) => profile(options));
}

async function profile(options: ProfileCommandOptions): Promise<void> {
  const output = createOutput(options);
  if (options.model === undefined)
    throw new InputError('--model is missing: give an .onnx file or the name of a built-in model.');
  checkStates(options, options.tangents !== undefined, '--tangents N');
  if (options.output !== undefined) await checkWritable(options.output);
  const { headClasses, freeze = [], freezeAllBut = [], train = [], batchNorm } = options;
  if (batchNorm !== undefined && batchNorm !== 'inference' && batchNorm !== 'training')
    throw new InputError(`--batch-norm ${batchNorm} must be one of inference, training.`);
  const model = await loadSizedModel(options.model, options, {
    ...(headClasses === undefined ? {} : { headClasses: positive('--head-classes', headClasses) }),
    ...(batchNorm === undefined ? {} : { batchNorm }),
  });
  const measured = await measureHere(model, {
    largestBatch: positive('--batch', options.batch),
    device: options.device,
    threads: positive('--threads', options.threads),
    engine: engineName(options.engine),
    freeze,
    freezeAllBut,
    train,
    ...(options.tangents === undefined ? {} : { tangentCount: positive('--tangents', options.tangents) }),
    clock: systemClock,
    onProgress: progress(output),
    onWarning: (message) => output.terminal.section('Warning', output.terminal.colors.yellow(message)),
  });
  output.terminal.live([]);
  if (options.output !== undefined) await writeJson(options.output, measured);
  output.json(measured);
  if (output.isJson) return;
  printProfile(measured, options.device, output.terminal);
  if (options.output === undefined) return;
  output.terminal.section('Written', options.output);
  output.terminal.section('Next', command(`plan --profile ${options.output} --cluster FILE --batch N`));
}

function printProfile({ model, layers, batchSizes, devices }: Profile, device: string, terminal: Terminal): void {
  const last = batchSizes.length - 1;
  const measured = devices[device];
  const width = Math.max(...layers.map(({ name }) => name.length));
  const milliseconds = (value: number): string => value.toFixed(3).padStart(9);
  terminal.section(
    'Profile',
    `${model}: ${counted(layers.length, 'layer')}, milliseconds at batch ${batchSizes[last]}`,
  );
  for (const [index, { name, weightBytes }] of layers.entries()) {
    const [forward, backward] = [measured?.forwardMs[last]?.[index] ?? 0, measured?.backwardMs[last]?.[index] ?? 0];
    const tangent = measured?.tangentMs?.[last]?.[index];
    const tangents = tangent === undefined ? '' : `  tangents ${milliseconds(tangent)}`;
    const weights = `${(weightBytes / 1024).toFixed(0)} KiB`.padStart(10);
    const times = `forward ${milliseconds(forward)}  backward ${milliseconds(backward)}${tangents}`;
    terminal.section('Profile', `${name.padEnd(width)}  ${times}  ${weights}`);
  }
}

/** Shows how many measurements are done. */
export function progress(output: Output): (done: number, total: number) => void {
  return (done, total) =>
    output.terminal.live([`${'Profile'.padEnd(labelWidth)}${bar(done / total, 30)} ${done}/${total} measurements`]);
}
