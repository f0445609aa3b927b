// The settings of a training run: one table from which the flags, the config file, its validation and config.yaml are
// made. A setting has the same name everywhere: `--micro-batch 16` is `micro-batch: 16` in a file. A flag wins over the
// file.

import { type Command, Option } from 'commander';
import { z } from 'zod';
import { deviceChoices } from '../engine/engine.ts';
import { InputError } from '../errors.ts';
import { runningVariances } from '../graph/graph.ts';
import { compressModes } from '../planner/compress.ts';
import { thoroughnesses } from '../runtime/protocol/profile-points.ts';
import { autoSchedule, type TrainSettings } from '../runtime/run/settings.ts';
import { scheduleNames } from '../schedule/schedules.ts';
import { isNumberLoss, lossKinds } from '../training/losses.ts';
import { optimizerKinds } from '../training/update-rules.ts';
import { adapterRows } from './adapter-setting-rows.ts';
import { checkStrict } from './check-strict.ts';
import { dataRows } from './data-setting-rows.ts';
import { checkMode, modeSettings } from './mode-settings.ts';
import {
  amount,
  fraction,
  numeric,
  port,
  positive,
  type Setting,
  text,
  toggle,
  whole,
  wholeOrZero,
} from './setting-values.ts';
import { testRows } from './test-setting-rows.ts';

const table: Readonly<Record<keyof TrainSettings, Setting>> = {
  model: {
    argument: 'FILE',
    description: 'an ONNX model, or the name of a built-in one, such as resnet-18:input=32,classes=10',
    schema: text,
    isRequired: true,
  },
  ...dataRows,
  inputShape: {
    argument: 'NAME=SHAPE',
    description:
      'sizes of an input that the model leaves open, as x=N,3,224,224, where the data are not enough; may be repeated',
    schema: z.array(text),
    default: [],
    isList: true,
  },
  headClasses: {
    argument: 'N',
    description: 'replace the classifier at the end by a new one with N classes',
    schema: numeric(
      z.number().int('must be a whole number').min(2, 'must be at least 2').max(1e6, 'must be at most 1e6'),
    ),
  },
  ...testRows,
  batch: { argument: 'N', description: 'samples of an update', schema: whole, default: 32 },
  accumulate: {
    argument: 'N',
    description: 'updates take N times --batch samples, whose gradients are summed in micro-batches of --batch',
    schema: whole,
  },
  dropLast: {
    description: 'leave out what does not fill the last batch of an epoch (default: a smaller batch)',
    schema: toggle,
    default: false,
  },
  microBatch: {
    argument: 'N',
    description: 'samples that travel through the pipeline at once (default: the planner chooses)',
    schema: whole,
  },
  epochs: { argument: 'N', description: 'passes over the data (default: 1, unless --steps is given)', schema: whole },
  steps: { argument: 'N', description: 'updates', schema: whole },
  optimizer: {
    argument: 'NAME',
    description: "sgd | adam | adamw | lion (one moment in place of adam's two)",
    schema: z.enum(optimizerKinds),
    default: 'sgd',
  },
  lr: { argument: 'L', description: 'learning rate', schema: amount, default: 0.01 },
  lrSchedule: {
    argument: 'SPEC',
    description: 'constant | step:EVERY:FACTOR | cosine | linear, each with :warmup=ROUNDS',
    schema: text,
    default: 'constant',
  },
  momentum: { argument: 'M', description: 'momentum of sgd', schema: fraction, default: 0 },
  nesterov: { description: "Nesterov's momentum", schema: toggle, default: false },
  weightDecay: { argument: 'W', description: 'weight decay', schema: amount, default: 0 },
  beta1: { argument: 'B', description: 'of adam, adamw and lion', schema: fraction, default: 0.9 },
  beta2: { argument: 'B', description: 'alike (default: 0.999; of lion 0.99)', schema: fraction },
  epsilon: { argument: 'E', description: 'of adam and adamw', schema: positive, default: 1e-8 },
  clipNorm: { argument: 'N', description: 'largest norm of the whole gradient', schema: positive },
  loss: {
    argument: 'NAME',
    description:
      'cross-entropy (labels: class numbers) | focal (alike, for rare classes) | binary-cross-entropy or bce (0 or 1 ' +
      'for each output; a Sigmoid at the end belongs to it) | mse | l1 | huber (numbers)',
    schema: z.preprocess((name) => (name === 'bce' ? 'binary-cross-entropy' : name), z.enum(lossKinds)),
    default: 'cross-entropy',
  },
  output: {
    argument: 'NAME',
    description: "the model's output that the loss takes (default: its first)",
    schema: text,
  },
  ignoreLabel: {
    argument: 'N',
    description: 'labels that are left out of loss, accuracy and gradient, such as 255; −100 always is',
    schema: numeric(
      z.number().int('must be a whole number').min(-1e9, 'must be at least -1e9').max(1e9, 'must be at most 1e9'),
    ),
  },
  freeze: {
    argument: 'PATTERN',
    description: 'parameters that stay as they are ("features.*"); may be repeated',
    schema: z.array(text),
    default: [],
    isList: true,
  },
  freezeAllBut: {
    argument: 'PATTERN',
    description: 'the only parameters that are trained ("classifier.*"); may be repeated',
    schema: z.array(text),
    default: [],
    isList: true,
  },
  ...adapterRows,
  profile: {
    argument: 'NAME',
    description: 'how the model is measured at the start: quick (seconds; rounds correct it) | full (minutes)',
    schema: z.enum(thoroughnesses),
    default: 'quick',
  },
  train: {
    argument: 'PATTERN',
    description: 'tensors that are trained although the file does not say that they are parameters; may be repeated',
    schema: z.array(text),
    default: [],
    isList: true,
  },
  batchNorm: {
    argument: 'MODE',
    description:
      'training: normalize by the statistics of each batch, also in models exported for inference (default) | ' +
      'inference: by the stored ones, which stay',
    schema: z.enum(['inference', 'training']),
  },
  planner: { argument: 'NAME', description: 'best | asteroid | straight | dp | single', schema: text, default: 'best' },
  compress: {
    argument: 'none|float16|int8|auto',
    description:
      'send activations and gradients in fewer bits: int8 only where gradients are summed; ' +
      'auto: what makes rounds shorter',
    schema: z.enum(compressModes),
    default: 'none',
  },
  schedule: {
    argument: 'NAME',
    description: `${scheduleNames.join(' | ')} | auto (the planner chooses)`,
    schema: text,
    default: autoSchedule,
  },
  ...modeSettings,
  useAll: { description: 'let every device compute, even where fewer would be faster', schema: toggle, default: false },
  plan: { argument: 'FILE', description: 'use this plan instead of planning', schema: text },
  cluster: { argument: 'FILE', description: 'use these links and memory sizes instead of measured ones', schema: text },
  workers: {
    argument: 'N',
    description: 'worker processes on this machine; 0 trains in this process',
    schema: wholeOrZero,
    default: 0,
  },
  remote: { argument: 'N', description: 'also wait for N workers on other machines', schema: wholeOrZero, default: 0 },
  host: {
    argument: 'ADDRESS',
    description: 'the address to listen on; 0.0.0.0 and :: are all of this machine',
    schema: text,
    default: '127.0.0.1',
  },
  port: { argument: 'N', description: 'the port to listen on; 0 takes a free one', schema: port, default: 0 },
  advertise: {
    argument: 'ADDRESS[:PORT]',
    description:
      'what other machines dial, where a router, a container or a tunnel leads to this one ' +
      '(default: the address and port listened on)',
    schema: text,
  },
  tlsCert: {
    argument: 'FILE',
    description: "an own certificate (PEM) to listen with, instead of the cluster's",
    schema: text,
  },
  tlsKey: { argument: 'FILE', description: 'its key (PEM)', schema: text },
  insecure: { description: 'send everything unencrypted beyond this machine', schema: toggle, default: false },
  seed: { argument: 'N', description: 'of the data order, dropout and new weights', schema: wholeOrZero, default: 0 },
  shuffle: { description: 'keep the order of the data', schema: toggle, default: true, isNegated: true },
  checkpointEvery: {
    argument: 'N',
    description: 'updates between checkpoints (default: one epoch, at most 500)',
    schema: whole,
  },
  engine: {
    argument: 'NAME',
    description: 'onnxruntime | reference',
    schema: z.enum(['onnxruntime', 'reference']),
    default: 'onnxruntime',
  },
  device: {
    argument: 'NAME',
    description: 'what local workers compute on: cpu | gpu (through WebGPU) | auto (what is faster)',
    schema: z.enum(deviceChoices),
    default: 'cpu',
  },
  threads: { argument: 'N', description: 'compute threads of each device', schema: whole, default: 1 },
  replicateBatchNorm: {
    description: 'let a stage with batch normalization be replicated: each device normalizes its own share',
    schema: toggle,
    default: false,
  },
  runningVariance: {
    argument: 'NAME',
    description:
      'what batch normalization averages: unbiased (as PyTorch) | population (as ONNX) ' +
      '(default: unbiased for built-in models and those that PyTorch exported, else population)',
    schema: z.enum(runningVariances),
  },
  replicateEvery: {
    argument: 'N',
    description:
      'copy what one device alone has to another every N updates, so that its loss costs little; ' +
      '0 never (default: as often as costs at most 3%)',
    schema: wholeOrZero,
  },
  strict: {
    description:
      'the same bits whatever the plan, also after devices were lost; needs --micro-batch, costs time and memory',
    schema: toggle,
    default: false,
  },
  grain: {
    argument: 'N',
    description:
      'samples that a strict run computes at once; shares are multiples of it ' +
      '(default: a quarter of --micro-batch or less)',
    schema: whole,
  },
  recompute: {
    argument: 'auto|none|BYTES',
    description:
      'compute activations again where keeping them takes more than these bytes on a device; ' +
      'auto: more than its memory allows',
    schema: z.union([z.enum(['auto', 'none']), wholeOrZero], { error: 'must be auto, none, or a number of bytes' }),
    default: 'auto',
  },
};

/** microBatch → micro-batch. */
function kebab(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}

/** The flag of a setting. */
export function flagName(name: keyof TrainSettings): string {
  return `--${table[name].isNegated === true ? 'no-' : ''}${kebab(name)}`;
}

/** The settings under the names that a config file uses. */
export function settingsDocument(settings: TrainSettings): Record<string, unknown> {
  return Object.fromEntries(
    names.flatMap((name) => (settings[name] === undefined ? [] : [[kebab(name), settings[name]]])),
  );
}

const names = Object.keys(table) as (keyof TrainSettings)[];

/** Adds the flags of `only` (default: all settings) to a command. Their values arrive unparsed; see resolveSettings. */
export function addSettingFlags(command: Command, only: readonly (keyof TrainSettings)[] = names): Command {
  for (const name of only) {
    const setting = table[name];
    const shown =
      setting.default === undefined || setting.default === false || setting.isList || setting.isNegated
        ? ''
        : ` (default: ${setting.default})`;
    const flag = setting.isNegated
      ? `--no-${kebab(name)}`
      : `--${kebab(name)}${setting.argument === undefined ? '' : ` <${setting.argument}>`}`;
    const option = new Option(flag, setting.description + shown);
    if (setting.isList)
      option.argParser((value: string, previous: string[] | undefined) => [...(previous ?? []), value]);
    command.addOption(option);
  }
  return command;
}

/** The flags that were given, without the defaults. */
export function givenFlags(options: Readonly<Record<string, unknown>>): Record<string, unknown> {
  const given: Record<string, unknown> = {};
  for (const name of names) {
    const value = options[name];
    if (value === undefined || (table[name].isNegated === true && value === true)) continue;
    given[name] = value;
  }
  return given;
}

/**
 * Merges flags over the config file over defaults and validates. Throws InputError for an unknown setting or a wrong
 * value, naming the flag or the file.
 */
export function resolveSettings(
  flags: Readonly<Record<string, unknown>>,
  file: Readonly<Record<string, unknown>>,
  fileName: string,
): TrainSettings {
  const result: Record<string, unknown> = {};
  for (const key of Object.keys(file)) {
    if (!names.some((name) => kebab(name) === key))
      throw new InputError(
        `${fileName} has the unknown setting ${shortened(JSON.stringify(key))}; ` +
          'settings are named as the flags of asteroid train are.',
      );
  }
  for (const name of names) {
    const setting = table[name];
    const fromFlag = Object.hasOwn(flags, name);
    const value = fromFlag ? flags[name] : (file[kebab(name)] ?? undefined);
    if (value === undefined) {
      if (setting.isRequired) throw new InputError(`--${kebab(name)} is missing: give ${setting.description}.`);
      if (setting.default !== undefined) result[name] = setting.default;
      continue;
    }
    const parsed = setting.schema.safeParse(value);
    const where = fromFlag
      ? `--${kebab(name)} ${value === '' ? '""' : String(value)}`
      : `${kebab(name)}: ${shortened(JSON.stringify(value))} in ${fileName}`;
    if (!parsed.success) throw new InputError(`${where} ${reason(parsed.error)}.`);
    result[name] = parsed.data;
  }
  result['beta2'] ??= result['optimizer'] === 'lion' ? 0.99 : 0.999;
  return checked(accumulated(result as unknown as TrainSettings));
}

function shortened(text: string): string {
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}

const expectations: Readonly<Record<string, string>> = {
  number: 'must be a number',
  int: 'must be a whole number',
  boolean: 'must be true or false',
  string: 'must be text',
  array: 'must be a list',
};

function reason(error: z.ZodError): string {
  const issue = error.issues[0];
  if (issue?.code === 'invalid_value') return `must be one of ${issue.values.join(', ')}`;
  if (issue?.code === 'invalid_type') return expectations[issue.expected] ?? `must be a ${issue.expected}`;
  return issue?.message ?? 'is wrong';
}

/** The settings of a run whose rounds are the updates: one batch of N, computed in parts of what was one batch. */
function accumulated({ accumulate, ...settings }: TrainSettings): TrainSettings {
  if (accumulate === undefined) return settings;
  const { batch, microBatch = batch } = settings;
  return { ...settings, batch: batch * accumulate, microBatch };
}

function checked(settings: TrainSettings): TrainSettings {
  if (settings.epochs !== undefined && settings.steps !== undefined)
    throw new InputError('--epochs and --steps cannot both be given: choose one.');
  const micro = settings.microBatch;
  if (micro !== undefined && settings.batch % micro !== 0) {
    throw new InputError(
      `--batch ${settings.batch} is not a multiple of --micro-batch ${micro}: ` +
        'choose a micro-batch that divides the batch.',
    );
  }
  checkStrict(settings);
  checkMode(settings);
  if (settings.ignoreLabel !== undefined && isNumberLoss(settings.loss))
    throw new InputError(
      `--ignore-label ${settings.ignoreLabel} does not go with --loss ${settings.loss}, whose targets are numbers: ` +
        'leave such samples out of the data.',
    );
  const weighted = settings.classWeights === undefined ? undefined : 'class-weights';
  const softens = settings.mixup > 0 ? 'mixup' : settings.labelSmoothing > 0 ? 'label-smoothing' : weighted;
  if (softens !== undefined && settings.loss !== 'cross-entropy')
    throw new InputError(
      `--${softens} concerns labels that are classes, and --loss ${settings.loss} has none: leave it out.`,
    );
  if (settings.nesterov && (settings.optimizer !== 'sgd' || settings.momentum === 0)) {
    throw new InputError('--nesterov needs --optimizer sgd and a --momentum above 0.');
  }
  return settings;
}
