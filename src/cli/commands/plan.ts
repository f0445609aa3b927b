// asteroid plan: who computes which layers on which share of each batch.

import type { Command } from 'commander';
import { bitsWish } from '../../cluster/activation-bits.ts';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { parseCluster } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { type CompressMode, compressModes } from '../../planner/compress.ts';
import { planTangentSteps } from '../../planner/forward-gradient.ts';
import { adaptivePlanSteps } from '../../planner/inference/adaptive.ts';
import { objectives } from '../../planner/inference/evaluate.ts';
import { inferencePlannerNames, planInferenceSteps } from '../../planner/inference/plan.ts';
import type { PlanInput } from '../../planner/plan.ts';
import { plannerNames } from '../../planner/planners.ts';
import { program } from '../../schedule/generate.ts';
import { passes } from '../../schedule/passes.ts';
import { inferenceSchedule, scheduleNames, tangentSchedule } from '../../schedule/schedules.ts';
import { stalenessOf } from '../../schedule/staleness.ts';
import { programText } from '../../schedule/text.ts';
import { optimizerKinds } from '../../training/update-rules.ts';
import { addCopiesFlag, isCopied } from '../copies-flag.ts';
import { checkWritable, readText, writeJson } from '../files.ts';
import { collected, positive } from '../flag-values.ts';
import { addSizeFlags, type SizeOptions } from '../model-options.ts';
import { printModes } from '../modes-table.ts';
import { createOutput, type Output } from '../output.ts';
import { type PlanSearch, readPin, search, searchPlan } from '../planning.ts';
import { addModeFlags, scheduleOfMode, searchModes, tangentWish } from '../planning-mode.ts';
import { planningProfile } from '../planning-profile.ts';
import { showPicture } from '../report.ts';
import { duration, type Terminal } from '../terminal.ts';

interface PlanCommandOptions extends SizeOptions {
  readonly model?: string;
  readonly profile?: string;
  readonly cluster?: string;
  readonly batch?: string;
  readonly microBatch?: string;
  readonly schedule?: string;
  readonly mode: string;
  readonly maxStaleness?: string;
  readonly tangents?: string;
  readonly staleness?: string;
  readonly objective?: string;
  readonly activationBits?: string;
  readonly compress: string;
  readonly planner: string;
  readonly optimizer: string;
  readonly momentum: string;
  readonly replicateBatchNorm?: boolean;
  readonly replicateEvery?: string;
  readonly recompute: boolean;
  readonly pin: readonly string[];
  readonly exclude: readonly string[];
  readonly timeLimit?: string;
  readonly profileOut?: string;
  readonly print?: boolean;
  readonly output?: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addPlan(program: Command): Command {
  const command = program
    .command('plan')
    .description('plan a hybrid pipeline for a cluster')
    .option('--profile <FILE>', 'a profile that asteroid profile or a run wrote')
    .option(
      '--model <FILE>',
      'instead of --profile: an ONNX model, or the name of a built-in one; times from the kinds of the devices',
    )
    .option('--cluster <FILE>', 'the devices and links, JSON or YAML')
    .option('--batch <N>', 'samples of an update')
    .option('--micro-batch <N>', 'samples that travel at once (default: the best)')
    .option(
      '--schedule <NAME>',
      `${scheduleNames.join(' | ')} (default: the planner chooses) | ${inferenceSchedule} (forward passes only)`,
    )
    .option(`--objective <${objectives.join('|')}>`, 'of inference: what the plan is for (default: throughput)')
    .option('--activation-bits <16|8|6|4|2|auto>', 'of inference: in how many bits activations travel (default: 32)')
    .option(
      `--compress <${compressModes.join('|')}>`,
      'what may travel in fewer bits over links; auto: what makes rounds shorter',
      'none',
    )
    .option(
      '--planner <NAME>',
      `${plannerNames.join(' | ')}; of inference: ${inferencePlannerNames.join(' | ')}`,
      'best',
    )
    .option('--optimizer <NAME>', `${optimizerKinds.join(' | ')}, for the memory that it needs`, 'sgd')
    .option('--momentum <M>', 'of sgd, for the memory that it needs', '0')
    .option('--replicate-batch-norm', 'let a stage with batch normalization be replicated')
    .option('--no-recompute', 'keep all activations, even where computing some again would make a plan fit')
    .option('--pin <LAYER=DEVICE>', 'a layer, by index or name, runs on this device; repeatable', collected, [])
    .option('--exclude <DEVICE>', 'a device that gets no layers; repeatable', collected, [])
    .option(
      '--time-limit <S>',
      'seconds after which the search ends with the best plan so far, as Ctrl-C does ' +
        '(default of planner best: 45; it waits for asteroid)',
    )
    .option('--profile-out <FILE>', 'write the profile that the plan was made from')
    .option('--print', 'print the passes of each device in a round, too')
    .option('-o, --output <FILE>', 'write what --json prints');
  return addSizeFlags(addCopiesFlag(addModeFlags(command)))
    .addHelpText(
      'after',
      '\nExample:\n  $ asteroid plan --profile profile.json --cluster cluster.yaml --batch 64 -o plan.json' +
        '\n  $ asteroid plan --model efficientnet-b1:input=64 --cluster clusters/asteroid-c.yaml ' +
        '--batch 2048 --replicate-batch-norm',
    )
    .action((options: PlanCommandOptions) => plan(options));
}

async function plan(options: PlanCommandOptions): Promise<void> {
  const output = createOutput(options);
  const { cluster: clusterPath, batch } = options;
  if (clusterPath === undefined) throw new InputError('--cluster is missing: give a file with devices and links.');
  if (batch === undefined) throw new InputError('--batch is missing: give the samples of an update.');
  if (options.print === true && options.planner === 'hetpipe')
    throw new InputError('Planner "hetpipe" makes no program: leave --print out, or take another planner.');
  for (const path of [options.output, options.profileOut]) if (path !== undefined) await checkWritable(path);
  const cluster = parseCluster(await readText(clusterPath), clusterPath);
  const profile = await planningProfile(
    {
      ...options,
      largestBatch: Math.min(64, positive('--batch', batch)),
      tangentCount: options.mode === tangentSchedule ? tangentWish(options).tangentCount : undefined,
    },
    cluster,
    output,
  );
  if (options.profileOut !== undefined) await writeJson(options.profileOut, profile);
  if (options.mode === 'auto') {
    await planModes({ ...options, batch }, { profile, cluster }, output);
    return;
  }
  const found = await (options.schedule === inferenceSchedule ? inferencePlan : trainingPlan)(
    { ...options, batch },
    { profile, cluster },
    output,
  );
  const { planningMs, isCutShort } = found;
  const document = { plan: found.plan, planningMs };
  if (options.output !== undefined) await writeJson(options.output, document);
  output.json(document);
  if (output.isJson) return;
  const { terminal } = output;
  terminal.section(
    'Plan',
    `by planner "${found.plan.planner}" in ${duration(planningMs / 1000)}${isCutShort ? ', the search cut short' : ''}`,
  );
  showPicture(
    found.plan,
    profile.layers.map((layer) => layer.name),
    terminal,
  );
  printStaleness(found.plan, terminal);
  if (options.print === true) printProgram(found.plan, terminal);
}

type Asked = PlanCommandOptions & { readonly batch: string };

interface Known {
  readonly profile: Profile;
  readonly cluster: Cluster;
}

function trainingPlan(options: Asked, known: Known, output: Output): Promise<PlanSearch> {
  if (options.objective !== undefined || options.activationBits !== undefined)
    throw new InputError('--objective and --activation-bits are for inference: add --schedule inference.');
  const schedule = scheduleOfMode(options.mode, options.schedule);
  const wish = tangentWish(options);
  if (schedule === tangentSchedule) return tangentPlan(options, { known, wish }, output);
  return searchPlan(
    {
      ...questionOf(options, known),
      compress: compressMode(options.compress),
      isCopied: isCopied(options),
      ...(schedule === undefined ? {} : { schedule }),
      ...staleLimit(options),
    },
    output,
    timeLimitMs(options),
  );
}

function tangentPlan(
  options: Asked,
  { known, wish }: { readonly known: Known; readonly wish: ReturnType<typeof tangentWish> },
  output: Output,
): Promise<PlanSearch> {
  staleLimit(options);
  const { compress, planner } = options;
  if (compress !== 'none' || planner === 'hetpipe')
    throw new InputError(
      `--mode ${tangentSchedule} takes neither --compress nor planner "hetpipe": leave it out, or name another mode.`,
    );
  const input = { ...questionOf(options, known), ...wish };
  return search(
    (hooks) => planTangentSteps({ ...input, isTimeUp: hooks.isTimeUp }),
    planner === 'best',
    output,
    timeLimitMs(options),
  );
}

/** What is asked in every mode of training. */
function questionOf(options: Asked, known: Known): Omit<PlanInput, 'schedule' | 'staleness'> {
  return {
    ...known,
    batchSize: positive('--batch', options.batch),
    planner: options.planner,
    optimizerState: optimizerState(options.optimizer, options.momentum),
    replicateBatchDependent: options.replicateBatchNorm === true,
    mayRecompute: options.recompute,
    pins: options.pin.map(readPin),
    exclude: options.exclude,
    ...microBatch(options, known.profile),
  };
}

/** What each mode would cost, the choice, and its plan. */
async function planModes(options: Asked, known: Known, output: Output): Promise<void> {
  scheduleOfMode(options.mode, options.schedule);
  if (options.compress !== 'none' || options.planner === 'hetpipe')
    throw new InputError('--mode auto takes neither --compress nor planner "hetpipe": leave it out, or name the mode.');
  const input = { ...questionOf(options, known), ...staleLimit(options), isCopied: isCopied(options) };
  const { choice, planningMs } = await searchModes(input, output, timeLimitMs(options));
  const { modes, chosen } = choice;
  const document = { plan: chosen.plan, planningMs, mode: chosen.mode, modes };
  if (options.output !== undefined) await writeJson(options.output, document);
  output.json(document);
  if (output.isJson) return;
  const { terminal } = output;
  printModes(modes, chosen.mode, terminal);
  terminal.section('Plan', `by planner "${chosen.plan.planner}", all modes in ${duration(planningMs / 1000)}`);
  const names = known.profile.layers.map((layer) => layer.name);
  showPicture(chosen.plan, names, terminal);
  printStaleness(chosen.plan, terminal);
  if (options.print === true) printProgram(chosen.plan, terminal);
}

/** Of rounds that overlap: by how many the weights lag behind. */
function printStaleness(plan: Plan, terminal: Terminal): void {
  const staleness = Math.max(...stalenessOf(plan));
  if (staleness > 0 && plan.schedule === tangentSchedule)
    terminal.print(`rounds overlap: stages compute with weights that lag behind by ${stalenessOf(plan).join(', ')}`);
  else if (staleness > 0)
    terminal.print(`rounds overlap: weights lag behind by ${staleness}, and a device keeps ${staleness + 1} versions`);
}

function staleLimit({ mode, maxStaleness }: PlanCommandOptions): { readonly maxStaleness?: number } {
  if (maxStaleness === undefined) return {};
  if (mode !== 'async' && mode !== 'auto') throw new InputError('--max-staleness needs --mode async or auto.');
  const rounds = Number(maxStaleness);
  if (!Number.isInteger(rounds) || rounds < 0)
    throw new InputError(`--max-staleness ${maxStaleness} must be a whole number of rounds, 0 or more.`);
  return { maxStaleness: rounds };
}

function inferencePlan(options: Asked, known: Known, output: Output): Promise<PlanSearch> {
  if (options.pin.length > 0) throw new InputError('Plans of inference take no pins; leave --pin out.');
  const { objective = 'throughput' } = options;
  if (objective !== 'throughput' && objective !== 'latency')
    throw new InputError(`--objective ${objective} must be one of ${objectives.join(', ')}.`);
  const { microBatchSize } = microBatch(options, known.profile);
  const input = {
    ...known,
    objective,
    batchSize: positive('--batch', options.batch),
    planner: options.planner,
    exclude: options.exclude,
    ...(microBatchSize === undefined ? {} : { microBatchSize }),
  } as const;
  const bits = options.activationBits === undefined ? undefined : bitsWish(options.activationBits);
  return search(
    (hooks) =>
      bits?.isAdaptive
        ? adaptivePlanSteps({ ...input, isTimeUp: hooks.isTimeUp })
        : planInferenceSteps({ ...input, ...bits, ...hooks }),
    options.planner === 'best',
    output,
    timeLimitMs(options),
  );
}

function timeLimitMs({ timeLimit }: PlanCommandOptions): number | undefined {
  return timeLimit === undefined ? undefined : 1000 * positive('--time-limit', timeLimit);
}

/** One line a device. F: forward, B: backward, I and W: its halves, R: AllReduce, U: update. */
function printProgram(plan: Plan, terminal: Terminal): void {
  const letters = Object.entries(passes).map(([kind, { letter }]) => `${letter} ${kind}`);
  terminal.section('Program', [...letters, 'R all-reduce', 'U update'].join(', '));
  terminal.print(programText(program(plan)));
}

/** The micro-batch that is asked for, or the only one with which the model runs. Throws InputError. */
function microBatch(
  { microBatch: asked, batch }: PlanCommandOptions,
  { model, fixedBatch }: Profile,
): { readonly microBatchSize?: number } {
  const size = asked === undefined ? fixedBatch : positive('--micro-batch', asked);
  if (fixedBatch === undefined || (size === fixedBatch && Number(batch) % fixedBatch === 0))
    return size === undefined ? {} : { microBatchSize: size };
  throw new InputError(
    `Model ${model} was exported for a batch of exactly ${fixedBatch}: use --micro-batch ${fixedBatch} and a --batch ` +
      'that is a multiple of it, or export it with a dynamic batch axis.',
  );
}

function compressMode(text: string): CompressMode {
  const found = compressModes.find((mode) => mode === text);
  if (found === undefined) throw new InputError(`--compress ${text} must be one of ${compressModes.join(', ')}.`);
  return found;
}

/** Copies of each weight that an optimizer keeps. Throws InputError. */
export function optimizerState(optimizer: string, momentum: string): 0 | 1 | 2 {
  if (optimizer === 'adam' || optimizer === 'adamw') return 2;
  if (optimizer === 'lion') return 1;
  if (optimizer !== 'sgd')
    throw new InputError(`--optimizer ${optimizer} must be one of ${optimizerKinds.join(', ')}.`);
  return Number(momentum) > 0 ? 1 : 0;
}
