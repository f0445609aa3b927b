// asteroid what-if: what a change of the cluster does to speed and memory, and which weights would have to move.

import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import type { DeviceSpec, LinkSpeed, Plan } from '../../cluster/cluster.ts';
import { kindModel } from '../../cluster/device-kinds.ts';
import { parseCluster, parsePlan, parseProfile } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { plannerNames } from '../../planner/planners.ts';
import { predictLoss } from '../../planner/replan/predict-loss.ts';
import { type Change, type WhatIf, whatIf } from '../../planner/what-if.ts';
import { tangentSchedule } from '../../schedule/schedules.ts';
import { optimizerKinds } from '../../training/update-rules.ts';
import { addCopiesFlag, isCopied } from '../copies-flag.ts';
import { readText, writeJson } from '../files.ts';
import { collected, positive } from '../flag-values.ts';
import { refuseOverload } from '../memory-check.ts';
import { addSizeFlags, type SizeOptions } from '../model-options.ts';
import { createOutput, type Output } from '../output.ts';
import { scheduleOfMode, tangentWish } from '../planning-mode.ts';
import { planningProfile } from '../planning-profile.ts';
import { duration, memory, type Terminal } from '../terminal.ts';
import { optimizerState } from './plan.ts';
import { printLoss, speed } from './what-if-kill.ts';

interface WhatIfCommandOptions extends SizeOptions {
  readonly cluster?: string;
  readonly profile?: string;
  readonly model?: string;
  readonly plan?: string;
  readonly batch?: string;
  readonly microBatch?: string;
  readonly planner: string;
  readonly mode: string;
  readonly tangents?: string;
  readonly optimizer: string;
  readonly momentum: string;
  readonly replicateBatchNorm?: boolean;
  readonly replicateEvery?: string;
  readonly join: readonly string[];
  readonly leave: readonly string[];
  readonly kill: readonly string[];
  readonly detection: string;
  readonly slow: readonly string[];
  readonly link: readonly string[];
  readonly output?: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addWhatIf(program: Command): Command {
  const command = program
    .command('what-if')
    .description('what happens to speed and memory when the cluster changes')
    .option('--cluster <FILE>', 'the devices and links before the change, JSON or YAML')
    .option('--profile <FILE>', 'the layers and their times')
    .option(
      '--model <FILE>',
      'instead of --profile: an ONNX model, or the name of a built-in one; times from the kinds of the devices',
    )
    .option('--plan <FILE>', 'the plan before the change (default: what the planner finds)')
    .option('--batch <N>', "samples of an update (default: the plan's)")
    .option('--micro-batch <N>', 'samples that travel at once (default: the best)')
    .option('--join <NAME=KIND>', 'a device joins; KIND may be followed by :MEMORY in MiB; repeatable', collected, [])
    .option('--leave <NAME>', 'a device leaves; repeatable', collected, [])
    .option('--kill <NAME>', 'a device vanishes without a word; repeatable; not with other changes', collected, [])
    .option('--detection <SECONDS>', 'of --kill: from the loss until it is certain', '3')
    .option('--slow <NAME=SHARE>', 'a device runs at this share of its speed; repeatable', collected, [])
    .option(
      '--link <[A,B=]MBPS>',
      'one link, or the default of all, gets this bandwidth; MBPS may be followed by :LATENCY in ms',
      collected,
      [],
    )
    .option('--planner <NAME>', plannerNames.join(' | '), 'best')
    .option(
      '--mode <NAME>',
      'sync | async | forward-gradient: how plans that are made here train; a given plan keeps its own',
      'sync',
    )
    .option('--tangents <N>', 'of forward-gradient: random directions of an update (default: 1)')
    .option('--optimizer <NAME>', `${optimizerKinds.join(' | ')}, for its memory and its state`, 'sgd')
    .option('--momentum <M>', 'of sgd, for its memory and its state', '0')
    .option('--replicate-batch-norm', 'let a stage with batch normalization be replicated')
    .option('-o, --output <FILE>', 'write what --json prints');
  return addSizeFlags(addCopiesFlag(command))
    .addHelpText(
      'after',
      '\nExample:' +
        '\n  $ asteroid what-if --model mobilenet-v2-cifar --cluster clusters/asteroid-d.yaml --batch 256 ' +
        '--replicate-batch-norm --leave tx2-1' +
        '\n  $ asteroid what-if --model efficientnet-b1 --cluster clusters/asteroid-d.yaml --batch 2048 ' +
        '--micro-batch 128 --kill nano-1',
    )
    .action((options: WhatIfCommandOptions) => run(options));
}

async function run(options: WhatIfCommandOptions): Promise<void> {
  const output = createOutput(options);
  const { cluster: clusterPath, plan: planPath } = options;
  if (clusterPath === undefined) throw new InputError('--cluster is missing: give a file with devices and links.');
  const changes = readChanges(options);
  const { kill } = options;
  if (changes.length === 0 && kill.length === 0)
    throw new InputError('Nothing changes: give --join, --leave, --kill, --slow or --link.');
  if (changes.length > 0 && kill.length > 0)
    throw new InputError(
      '--kill cannot be given with --join, --leave, --slow or --link: ' +
        'ask for the loss alone, or let the device --leave.',
    );
  const cluster = parseCluster(await readText(clusterPath), clusterPath);
  const current = planPath === undefined ? undefined : parsePlan(await readText(planPath), planPath);
  const batchSize = options.batch === undefined ? current?.batchSize : positive('--batch', options.batch);
  if (batchSize === undefined) throw new InputError('--batch is missing: give the samples of an update, or --plan.');
  // A device that joins needs times too, whether by name or by kind: the profile is for the cluster with it.
  const joined = {
    ...cluster,
    devices: [...cluster.devices, ...changes.flatMap((change) => (change.kind === 'join' ? [change.device] : []))],
  };
  if (options.mode === 'auto')
    throw new InputError('--mode auto is of asteroid plan: name sync, async or forward-gradient.');
  const schedule = current === undefined ? scheduleOfMode(options.mode, undefined) : undefined;
  const asked = current === undefined ? tangentWish(options).tangentCount : (current.tangentCount ?? 1);
  const tangentCount = (current?.schedule ?? schedule) === tangentSchedule ? asked : undefined;
  const profile = await planningProfile(
    { ...options, largestBatch: Math.min(64, batchSize), tangentCount },
    joined,
    output,
  );
  const question = {
    cluster,
    ...(schedule === undefined ? {} : { schedule }),
    ...(current === undefined ? { tangentCount: asked } : { current }),
    batchSize,
    planner: options.planner,
    optimizerState: optimizerState(options.optimizer, options.momentum),
    replicateBatchDependent: options.replicateBatchNorm === true,
    isCopied: isCopied(options),
    ...(options.microBatch === undefined ? {} : { microBatchSize: positive('--micro-batch', options.microBatch) }),
  };
  if (kill.length > 0) {
    const detectionMs = 1000 * numberOf(options.detection, '--detection', options.detection);
    if (detectionMs < 0) throw new InputError(`--detection ${options.detection} is below 0: give seconds.`);
    const loss = predictLoss({ ...question, profile, lost: [...new Set(kill)], detectionMs, now: systemClock.now });
    refuseOverload(loss.before.predicted.peakMemoryMiB, cluster, planPath ?? 'The plan');
    await finish(loss, options, output, printLoss);
  } else {
    const found = whatIf({ ...question, profileFor: () => parseProfile(profile), changes });
    refuseOverload(found.before.predicted.peakMemoryMiB, cluster, planPath ?? 'The plan');
    await finish(found, options, output, print);
  }
}

async function finish<Result>(
  result: Result,
  options: WhatIfCommandOptions,
  output: Output,
  show: (result: Result, terminal: Terminal) => void,
): Promise<void> {
  if (options.output !== undefined) await writeJson(options.output, result);
  output.json(result);
  if (!output.isJson) show(result, output.terminal);
}

function readChanges({ join, leave, slow, link }: WhatIfCommandOptions): Change[] {
  return [
    ...join.map((text): Change => ({ kind: 'join', device: readDevice(text) })),
    ...leave.map((device): Change => ({ kind: 'leave', device })),
    ...slow.map((text): Change => {
      const [device, share] = cutAt(text, '=', '--slow', 'NAME=SHARE, such as pi-2=0.5');
      return { kind: 'slow', device, share: numberOf(share, '--slow', text) };
    }),
    ...link.map((text): Change => {
      const [names, speed] = text.includes('=') ? cutAt(text, '=', '--link', 'A,B=MBPS') : [undefined, text];
      if (names === undefined) return { kind: 'link', speed: readSpeed(speed, text) };
      return {
        kind: 'link',
        between: cutAt(names, ',', '--link', 'A,B=MBPS, such as pi-1,pi-2=20'),
        speed: readSpeed(speed, text),
      };
    }),
  ];
}

/** NAME=KIND or NAME=KIND:MEMORY. */
function readDevice(text: string): DeviceSpec {
  const [name, rest] = cutAt(text, '=', '--join', 'NAME=KIND, such as nano-6=jetson-nano');
  const [kind = '', memoryText] = rest.split(':');
  const memoryMiB = memoryText === undefined ? kindModel(kind)?.memoryMiB : numberOf(memoryText, '--join', text);
  if (memoryMiB === undefined)
    throw new InputError(
      `--join ${text}: the memory of a "${kind}" is not known; write it behind the kind, such as ${text}:4096.`,
    );
  return { name, kind, memoryMiB };
}

/** MBPS or MBPS:LATENCY. */
function readSpeed(text: string, whole: string): Partial<LinkSpeed> {
  const [mbps = '', latency] = text.split(':');
  return {
    bandwidthMbps: numberOf(mbps, '--link', whole),
    ...(latency === undefined ? {} : { latencyMs: numberOf(latency, '--link', whole) }),
  };
}

function cutAt(text: string, mark: string, flag: string, form: string): [string, string] {
  const at = text.indexOf(mark);
  if (at < 1 || at === text.length - 1)
    throw new InputError(`${flag} ${text} is not of the form ${form}: write it so.`);
  return [text.slice(0, at), text.slice(at + 1)];
}

function numberOf(text: string, flag: string, whole: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value))
    throw new InputError(`${flag} ${whole}: "${text}" is not a number; give one.`);
  return value;
}

function print({ before, kept, after, move }: WhatIf, terminal: Terminal): void {
  terminal.section('Before', speed(before));
  terminal.section(
    'After',
    kept === undefined ? 'the plan cannot run: one of its devices has left' : `${speed(kept)}, by the same plan`,
  );
  terminal.section('After', `${speed(after)}, by a new plan`);
  const names = Object.keys({ ...before.predicted.peakMemoryMiB, ...after.predicted.peakMemoryMiB });
  const width = Math.max(...names.map((name) => name.length));
  const peak = (plan: Plan, name: string): string => {
    const mib = plan.predicted.peakMemoryMiB[name];
    return mib === undefined ? 'unused' : memory(mib);
  };
  for (const name of names)
    terminal.section(
      'Memory',
      `${name.padEnd(width)}  ${peak(before, name).padStart(9)} before, ${peak(after, name)} after`,
    );
  const mib = (bytes: number): string => memory(bytes / 2 ** 20);
  if (move.bytes === 0) terminal.section('To move', 'nothing');
  const travelling = move.bytes - move.lostBytes;
  if (travelling > 0) terminal.section('To move', `${mib(travelling)} of weights, ${duration(move.moveMs / 1000)}`);
  for (const { from, to, bytes } of move.transfers) terminal.section('To move', `${from} -> ${to}  ${mib(bytes)}`);
  if (move.lostBytes > 0)
    terminal.section(
      'To move',
      `${mib(move.lostBytes)} that only devices which left had: from a checkpoint or a replica`,
    );
}
