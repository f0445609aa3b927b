// The flags of the commands that infer, and the settings that follow from them.

import { type Command, Option } from 'commander';
import { bitsWish } from '../cluster/activation-bits.ts';
import type { Plan } from '../cluster/cluster.ts';
import { parsePlan } from '../cluster/validate.ts';
import { InputError } from '../errors.ts';
import { parseInputShape } from '../graph/onnx/input-shapes.ts';
import { objectives } from '../planner/inference/evaluate.ts';
import { inferencePlannerNames } from '../planner/inference/plan.ts';
import { loadInferenceModel } from '../runtime/host/models.ts';
import type { InferenceModel, InferenceSettings } from '../runtime/run/infer.ts';
import { unmeasuredPlanner } from '../runtime/run/unmeasured-plan.ts';
import { readText } from './files.ts';
import { collected, engineName, positive } from './flag-values.ts';

/** What is given of the flags of {@link addInferenceFlags}. */
export interface InferenceFlags {
  readonly model?: string;
  readonly inputShape: readonly string[];
  readonly output: readonly string[];
  readonly planner: string;
  readonly objective: string;
  readonly activationBits?: string;
  readonly plan?: string;
  readonly batch?: string;
  readonly microBatch?: string;
  readonly workers: string;
  readonly remote: string;
  readonly host: string;
  readonly port: string;
  readonly advertise?: string;
  readonly codeFile?: string;
  readonly tlsCert?: string;
  readonly tlsKey?: string;
  readonly insecure?: boolean;
  readonly engine: string;
  readonly threads: string;
  readonly seed: string;
}

const flags: readonly (readonly [flag: string, description: string, preset?: string])[] = [
  ['--model <FILE|NAME>', 'an ONNX file, or a built-in model'],
  ['--planner <NAME>', `${inferencePlannerNames.join(' | ')} | ${unmeasuredPlanner} (by operations alone)`, 'best'],
  [`--objective <${objectives.join('|')}>`, 'what the plan is for', 'throughput'],
  [
    '--activation-bits <16|8|6|4|2|auto>',
    'in how many bits activations travel, of a plan that is made here; auto: by what links carry (default: 32)',
  ],
  ['--plan <FILE>', 'use this plan instead of planning'],
  ['--batch <N>', 'samples that are sent and answered together (default: four micro-batches, of serve one)'],
  ['--micro-batch <N>', 'samples that a device computes at once (default: 8, or what the model was exported for)'],
  ['--workers <N>', 'worker processes on this machine', '1'],
  ['--remote <N>', 'also wait for N workers on other machines', '0'],
  [
    '--host <ADDRESS>',
    'the address on which to listen for workers; 0.0.0.0 and :: are all of this machine',
    '127.0.0.1',
  ],
  ['--port <N>', 'the port for workers; 0 takes a free one', '0'],
  ['--advertise <ADDRESS[:PORT]>', 'what other machines dial, where a router, container or tunnel leads to this one'],
  ['--code-file <FILE>', 'write the join code there too, for workers that a script starts'],
  ['--tls-cert <FILE>', "an own certificate (PEM) to listen with, instead of the cluster's"],
  ['--tls-key <FILE>', 'its key (PEM)'],
  ['--insecure', 'send everything unencrypted beyond this machine'],
  ['--engine <NAME>', 'onnxruntime | reference', 'onnxruntime'],
  ['--threads <N>', 'compute threads of each device', '1'],
  ['--seed <N>', 'of the weights of built-in models', '0'],
];

/** Adds the flags that say what computes, where, and by which plan. */
export function addInferenceFlags(command: Command): Command {
  for (const [flag, description, preset] of flags) {
    const option = new Option(flag, description);
    command.addOption(preset === undefined ? option : option.default(preset));
  }
  command.option(
    '--output <NAME>',
    "an output of the model's to compute (default: its first); repeatable",
    collected,
    [],
  );
  return command.option(
    '--input-shape <NAME=SHAPE>',
    'sizes that the model leaves open, as x=N,3,224,224; repeatable',
    collected,
    [],
  );
}

/** Loads the model that the flags name. Throws InputError. */
export async function modelOf({ model, inputShape, output, seed }: InferenceFlags): Promise<InferenceModel> {
  if (model === undefined)
    throw new InputError('--model is missing: give an ONNX file, or the name of a built-in model.');
  return loadInferenceModel(model, {
    seed: whole('--seed', seed),
    inputShapes: inputShape.map(parseInputShape),
    outputs: output,
  });
}

/** Reads the plan that the flags name. Throws InputError. */
export async function planOf({ plan: path }: Pick<InferenceFlags, 'plan'>): Promise<Plan | undefined> {
  if (path === undefined) return undefined;
  const plan = parsePlan(await readText(path), path);
  return { ...plan, predicted: plan.predicted ?? { roundMs: 0, samplesPerS: 0, peakMemoryMiB: {} } };
}

/** Samples of a micro-batch where nobody says otherwise. */
const usualSize = 8;

/** What is known of the samples, before any flag. */
interface Coming {
  /** The most samples that come together. */
  readonly most?: number;
  /** Micro-batches of a round where nobody says otherwise. */
  readonly usualCount?: number;
  /** Rounds have 1, 2, 4, … samples, not only whole batches and one that is left over. */
  readonly isAnySize?: boolean;
}

/** The settings of a run. Throws InputError. */
export function inferenceSettings(
  flags: InferenceFlags,
  { graph: { fixedBatch } }: InferenceModel,
  plan: Plan | undefined,
  { most = Number.POSITIVE_INFINITY, usualCount = 4, isAnySize = false }: Coming = {},
): InferenceSettings {
  const given = flags.microBatch === undefined ? undefined : positive('--micro-batch', flags.microBatch);
  const size = plan?.microBatchSize ?? given ?? fixedBatch ?? Math.min(usualSize, most);
  if (given !== undefined && size !== given)
    throw new InputError(`The plan is for micro-batches of ${size}, --micro-batch is ${given}: leave it out.`);
  const wanted = flags.batch === undefined ? undefined : positive('--batch', flags.batch);
  const batchSize = plan?.batchSize ?? wanted ?? size * Math.min(usualCount, Math.max(1, Math.floor(most / size)));
  if (wanted !== undefined && batchSize !== wanted)
    throw new InputError(`The plan is for batches of ${batchSize}, --batch is ${wanted}: leave it out.`);
  if (batchSize % size !== 0)
    throw new InputError(`--batch ${batchSize} is not a multiple of the micro-batch, ${size}: choose one that is.`);
  const [workers, remote] = [whole('--workers', flags.workers), whole('--remote', flags.remote)];
  if (workers + remote === 0) throw new InputError('--workers 0 leaves nobody to compute: give at least 1.');
  const { host, advertise, tlsCert, tlsKey, insecure = false } = flags;
  const objective = objectives.find((name) => name === flags.objective);
  if (objective === undefined)
    throw new InputError(`--objective ${flags.objective} must be one of ${objectives.join(', ')}.`);
  const planners = [...inferencePlannerNames, unmeasuredPlanner];
  if (!planners.includes(flags.planner))
    throw new InputError(`There is no planner "${flags.planner}" of inference; use one of ${planners.join(', ')}.`);
  const sizeCount = 1 + Math.floor(Math.log2(size));
  return {
    batchSize,
    microBatchSize: size,
    sizeCount: fixedBatch !== undefined ? 1 : Math.min(sizeCount, isAnySize ? sizeCount : 2),
    isMicroBatchGiven: given !== undefined || fixedBatch !== undefined,
    planner: flags.planner,
    objective,
    ...(flags.activationBits === undefined ? {} : { bits: bitsWish(flags.activationBits) }),
    remoteCount: remote,
    cluster: {
      ...{ host, port: whole('--port', flags.port), insecure, localCount: workers },
      ...(advertise === undefined ? {} : { advertise }),
      ...(tlsCert === undefined ? {} : { tlsCert }),
      ...(tlsKey === undefined ? {} : { tlsKey }),
      engine: engineName(flags.engine),
      threads: positive('--threads', flags.threads),
    },
  };
}

function whole(flag: string, text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isInteger(value) || value < 0)
    throw new InputError(`${flag} ${text} must be a whole number of at least 0.`);
  return value;
}
