// The settings that say how rounds follow each other: one after the other, or overlapping with weights that lag.

import { z } from 'zod';
import { InputError } from '../errors.ts';
import { noiseKinds } from '../noise.ts';
import { recoveryNames } from '../runtime/knowledge/recovery-policies.ts';
import { tangentLimit } from '../runtime/protocol/training-spec.ts';
import { autoSchedule, perturbedKinds, type TrainSettings, trainModes } from '../runtime/run/settings.ts';
import { checkCorrection, stalenessCorrections } from '../training/staleness.ts';
import { numeric, type Setting, text, toggle, wholeOrZero } from './setting-values.ts';

type ModeSetting =
  | 'mode'
  | 'staleness'
  | 'verticalSync'
  | 'aggregate'
  | 'stalenessCorrection'
  | 'recovery'
  | 'tangents'
  | 'tangent'
  | 'tangentScale'
  | 'perturb'
  | 'tangentDifference'
  | 'state';

export const modeSettings: Readonly<Record<ModeSetting, Setting>> = {
  mode: {
    argument: 'NAME',
    description:
      'sync: rounds follow each other (default) | async: rounds overlap, no device waits, and weights lag behind ' +
      '(FTPipeHD, PipeDream) | forward-gradient: no backward passes, nothing is kept, gradients are estimated along ' +
      'random directions (AsyncFGD) | auto: what sync and async would cost, and the faster one',
    schema: z.enum(trainModes),
  },
  staleness: {
    argument: 'N',
    description: 'async: rounds by which weights lag behind, in all stages (default: the least that the plan allows)',
    schema: wholeOrZero,
  },
  verticalSync: {
    description: 'async: each stage computes with its newest weights, instead of all with one version',
    schema: toggle,
    default: true,
    isNegated: true,
  },
  aggregate: {
    argument: 'K',
    description: "async: average the last versions of a stage's weights every K times as many updates; 0 never",
    schema: wholeOrZero,
    default: 0,
  },
  stalenessCorrection: {
    argument: 'NAME',
    description:
      `async: what makes up for old weights: ${stalenessCorrections.join(' | ')} (default: nesterov; none with ` +
      '--aggregate, --planner ftpipehd or without momentum)',
    schema: z.enum(stalenessCorrections),
  },
  recovery: {
    argument: 'NAME',
    description:
      'how a run follows slower devices and losses: asteroid: drift, light re-planning (default) | ftpipehd: by ' +
      'capacities, every 100 updates (default of --mode async --planner ftpipehd) | respipe: a neighbour takes over',
    schema: z.enum(recoveryNames),
  },
  tangents: {
    argument: 'N',
    description: 'forward-gradient: random directions of an update, whose estimates are averaged',
    schema: numeric(
      z
        .number()
        .int('must be a whole number')
        .min(1, 'must be at least 1')
        .max(tangentLimit, `must be at most ${tangentLimit}`),
    ),
    default: 1,
  },
  tangent: {
    argument: 'NAME',
    description: `forward-gradient: how directions are drawn: ${noiseKinds.join(' | ')}`,
    schema: z.enum(noiseKinds),
    default: 'rademacher',
  },
  tangentScale: {
    argument: 'PATTERN=ALPHA[:EPOCHS]',
    description:
      'forward-gradient: the factor of the directions of parameters ("*.bias=0.1:20"), growing from 0 over so many ' +
      'epochs; 0 freezes; may be repeated',
    schema: z.array(text),
    default: [],
    isList: true,
  },
  perturb: {
    argument: 'WHAT',
    description:
      'forward-gradient: what moves along directions: weights | activations, what the layers with trained weights ' +
      'give, sample by sample: far less noise, and these layers stay in one stage on one device',
    schema: z.enum(perturbedKinds),
    default: 'weights',
  },
  tangentDifference: {
    argument: 'STEP',
    description:
      'forward-gradient: derivatives from two forward passes, so far along a direction and against it (MeZO), in ' +
      'place of tangents; 0.001 is usual',
    schema: numeric(z.number().positive('must be more than 0')),
  },
  state: {
    argument: 'OUT=IN',
    description:
      "forward-gradient: a recurrent cell's output that is its input in the next time step; samples are sequences " +
      '[samples, steps, ...], and --batch counts steps; may be repeated',
    schema: z.array(text),
    default: [],
    isList: true,
  },
};

/** Settings that do not go together, or with the mode. Throws InputError. */
export function checkMode(settings: TrainSettings): void {
  const { mode, plan, staleness, verticalSync, aggregate, stalenessCorrection = 'none' } = settings;
  if (mode === 'async') checkAsynchronous(settings);
  if (mode === 'forward-gradient') checkForwardGradient(settings);
  if (mode === 'auto') checkAuto(settings);
  if (settings.perturb === 'activations' && mode !== 'forward-gradient')
    throw new InputError('--perturb activations needs --mode forward-gradient: gradients are exact in other modes.');
  if (settings.state.length > 0 && mode !== 'forward-gradient')
    throw new InputError('--state needs --mode forward-gradient: other modes would keep every step of a sequence.');
  checkRecovery(settings);
  const ofStream = [
    [staleness !== undefined, '--staleness'],
    [!verticalSync, '--no-vertical-sync'],
    [aggregate > 0, '--aggregate'],
    [stalenessCorrection !== 'none', '--staleness-correction'],
  ] as const;
  const [, name] = ofStream.find(([isGiven]) => isGiven) ?? [];
  // Without a mode, a plan's schedule says what it is.
  const isFitting =
    mode === 'async' ||
    (mode === 'auto' && name === '--staleness-correction') ||
    (mode === undefined && plan !== undefined) ||
    (mode === 'forward-gradient' && name === '--staleness');
  if (name !== undefined && !isFitting) throw new InputError(`${name} needs --mode async.`);
  checkCorrection(stalenessCorrection, { kind: settings.optimizer, momentum: settings.momentum });
  if (staleness !== undefined && !verticalSync)
    throw new InputError('--staleness and --no-vertical-sync cannot both be given: choose one.');
}

/** FTPipeHD's needs to know how fast devices are; the others cannot share out a strict run's grains. */
function checkRecovery(settings: TrainSettings): void {
  const { recovery = 'asteroid', plan, strict, workers, remote } = settings;
  if (recovery === 'asteroid') return;
  if (workers + remote === 0)
    throw new InputError(`--recovery ${recovery} needs several devices: give --workers N or --remote N.`);
  if (recovery === 'ftpipehd' && plan !== undefined)
    throw new InputError('--recovery ftpipehd needs a profile of the model, which a run with --plan does not make.');
  if (strict) throw new InputError(`--recovery ${recovery} does not take --strict: leave one of them out.`);
}

function checkAsynchronous({ workers, remote, schedule, ...settings }: TrainSettings): void {
  if (workers + remote === 0)
    throw new InputError(
      '--mode async needs several devices, whose rounds can overlap: give --workers N or --remote N.',
    );
  if (schedule !== autoSchedule)
    throw new InputError(`--mode async has a schedule of its own: leave out --schedule ${schedule}.`);
  if (settings.strict) checkStrictStream(settings);
}

/** The same bits whatever the plan: then a plan must not decide which weights a round reads. */
function checkStrictStream({ verticalSync, aggregate, staleness, plan }: Partial<TrainSettings>): void {
  const refused = [
    [verticalSync === false, '--no-vertical-sync', 'how old the weights of a layer are would depend on its stage'],
    [(aggregate ?? 0) > 0, `--aggregate ${aggregate}`, 'which versions are averaged depends on the stages'],
  ] as const;
  for (const [isGiven, flag, why] of refused)
    if (isGiven) throw new InputError(`--mode async --strict does not take ${flag}: ${why}; leave one of them out.`);
  if (staleness === undefined && plan === undefined)
    throw new InputError(
      '--mode async --strict needs --staleness N: weights as old as that are read whatever the plan, and else each ' +
        'plan has a staleness of its own.',
    );
}

function checkAuto({ plan, schedule, strict, compress, useAll }: TrainSettings): void {
  const refused = [
    [plan !== undefined, '--plan', 'a plan has its mode'],
    [schedule !== autoSchedule, `--schedule ${schedule}`, 'each mode has schedules of its own'],
    [strict, '--strict', 'grains are not compared'],
    [compress !== 'none', `--compress ${compress}`, 'plans are compared without compression'],
    [useAll, '--use-all', 'the faster plan may leave devices out'],
  ] as const;
  for (const [isGiven, flag, why] of refused)
    if (isGiven) throw new InputError(`--mode auto does not take ${flag}: ${why}; leave it out, or name the mode.`);
}

function checkForwardGradient(settings: TrainSettings): void {
  const { staleness, strict, schedule, replicateBatchNorm, compress, perturb } = settings;
  const refused = [
    [strict, '--strict', 'gradients are estimates, not sums in an order of their own'],
    [schedule !== autoSchedule, `--schedule ${schedule}`, 'the mode has a schedule of its own'],
    [replicateBatchNorm, '--replicate-batch-norm', 'without an AllReduce nobody averages running statistics'],
    [compress !== 'none', `--compress ${compress}`, 'rounding would hide the derivatives'],
  ] as const;
  if (perturb === 'activations' && (settings.state.length > 0 || settings.tangentDifference !== undefined))
    throw new InputError(
      '--perturb activations takes neither --state nor --tangent-difference: leave them out, or --perturb.',
    );
  for (const [isGiven, flag, why] of refused)
    if (isGiven) throw new InputError(`--mode forward-gradient does not take ${flag}: ${why}; leave it out.`);
  if (staleness !== undefined && staleness > 0)
    throw new InputError(
      `--mode forward-gradient takes --staleness 0 (rounds follow each other), not ${staleness}; leave it out, and ` +
        'each stage lags by as many rounds as there are stages behind it.',
    );
}
