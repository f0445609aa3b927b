// What of a model a run trains: the parameters that stay as they are (--freeze, --freeze-all-but), the tensors that are
// parameters although nothing says so (--train), and the layers that follow from that.

import { activitiesOf } from '../../autodiff/activity-perturbation.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { freezeBatchNormalization, untieFrozen } from '../../graph/freeze.ts';
import type { Graph, RunningVariance } from '../../graph/graph.ts';
import { forwardOnlyCount, type LayerSequence, layers } from '../../graph/layers.ts';
import type { WeightChoice } from '../../graph/onnx/parameters.ts';
import { extractStage } from '../../graph/stage.ts';
import type { LossKind } from '../../training/losses.ts';
import { matching, patternExpression } from './parameter-patterns.ts';
import type { PerturbedKind } from './settings.ts';
import { tangentScales } from './tangent-scales.ts';
import { outputOf } from './trained-output.ts';

/** The settings that decide what is trained. */
export interface FineTuning {
  readonly loss: LossKind;
  /** The output that the loss takes. Default: the first. */
  readonly output?: string;
  readonly freeze: readonly string[];
  readonly freezeAllBut: readonly string[];
  /** Default: none. */
  readonly train?: readonly string[];
  /** The only parameters that are trained, of a model with adapters. Default: all but those that are frozen. */
  readonly onlyTrained?: ReadonlySet<string> | undefined;
  /** Of forward gradients: a factor of 0 freezes. Default: none. */
  readonly tangentScale?: readonly string[];
  /** What forward gradients move. Default: weights. */
  readonly perturb?: PerturbedKind;
  /** Default: as the model's producer has it. */
  readonly runningVariance?: RunningVariance;
}

/** A model as a run trains it. */
export interface TrainedLayers {
  readonly sequence: LayerSequence;
  /** Parameters that stay as they are, in the model's order. */
  readonly frozen: readonly string[];
  /** What the user should know of it, one sentence each. */
  readonly notes: readonly string[];
}

/**
 * The layers of a model in training mode, with what is frozen: batch normalization of frozen layers stays in inference
 * mode, and what squashes the output is left to the loss. `choices` are those of the file's tensors (ImportedModel):
 * they say what --train may name, and a note lists the guesses among them. Throws InputError for a pattern that matches
 * nothing, and where nothing is left to train.
 */
export function trainedLayers(
  model: Graph,
  {
    loss,
    output,
    freeze,
    freezeAllBut,
    train = [],
    onlyTrained,
    tangentScale = [],
    perturb = 'weights',
    runningVariance = model.runningVariance,
  }: FineTuning,
  choices: readonly WeightChoice[] = [],
): TrainedLayers {
  const graph = withMoreParameters(model, choices, train);
  const guesses = onlyTrained === undefined ? guessesNote(choices, { freeze, freezeAllBut, train }) : undefined;
  const { graph: open, notes: ofOutput } = outputOf(graph, loss, output);
  const notes = [...(guesses === undefined ? [] : [guesses]), ...ofOutput];
  const unmoved = tangentScales(open.parameters, tangentScale).zeros;
  const named = new Set([...frozenNames(open.parameters, { freeze, freezeAllBut }), ...unmoved]);
  const kept = open.parameters.filter((name) => named.has(name) || onlyTrained?.has(name) === false);
  const { graph: untied, frozen } = untieFrozen(open, kept);
  const trained = runningVariance === undefined ? untied : { ...untied, runningVariance };
  const sequence = (perturb === 'weights' ? layersOf : togetherOf)(freezeBatchNormalization(trained, frozen), frozen);
  const { parameters } = sequence.graph;
  const used = frozen.filter((name) => parameters.includes(name));
  if (parameters.length > 0 && used.length === parameters.length) throw nothingLeft({ freezeAllBut });
  const forwardOnly = forwardOnlyCount(sequence);
  if (used.length > 0 && forwardOnly > 0)
    notes.push(
      `${forwardOnly} of ${sequence.layers.length} layers are frozen before all others: they only run forward, ` +
        'and keep nothing.',
    );
  return { sequence, frozen: used, notes };
}

function layersOf(graph: Graph, frozen: readonly string[]): LayerSequence {
  return layers(graph, { frozen });
}

/**
 * The layers of a net whose activities move: all that is trained in the last one. Throws InputError where samples
 * depend on each other, or what is trained gives no activity (activitiesOf).
 */
function togetherOf(graph: Graph, frozen: readonly string[]): LayerSequence {
  const sequence = layers(graph, { frozen, isTrainedTogether: true });
  const apart = layers(graph, { frozen });
  const first = sequence.layers.length - 1;
  if (apart.layers.slice(first).some(({ batchDependent }) => batchDependent))
    throw new InputError(
      '--perturb activations needs samples that do not depend on each other: give --batch-norm inference, or leave ' +
        '--perturb out.',
    );
  const stage = extractStage(sequence, first, first + 1, sequence.fixedBatch ?? 2);
  const isFrozen = new Set(frozen);
  activitiesOf(
    stage,
    stage.graph.parameters.filter((name) => !isFrozen.has(name)),
  );
  return sequence;
}

/** The graph in which the tensors that match a pattern of --train are parameters, too, in the file's order. */
function withMoreParameters(graph: Graph, choices: readonly WeightChoice[], train: readonly string[]): Graph {
  if (train.length === 0) return graph;
  const buffers = new Set(graph.buffers);
  const mayBe = new Set([...graph.parameters, ...choices.map(({ name }) => name)]);
  const names = [...graph.initializers.keys()].filter((name) => mayBe.has(name) && !buffers.has(name));
  const added = matching(names, train, '--train');
  const parameters = new Set([...graph.parameters, ...added]);
  return { ...graph, parameters: names.filter((name) => parameters.has(name)) };
}

/** How many tensors the note lists. */
const listedCount = 12;

/** What the file does not say and no pattern decides, or undefined if there is nothing. */
function guessesNote(
  choices: readonly WeightChoice[],
  { freeze, freezeAllBut, train }: Required<Pick<FineTuning, 'freeze' | 'freezeAllBut' | 'train'>>,
): string | undefined {
  if (freezeAllBut.length > 0) return undefined;
  const decided = [...freeze, ...train].map(patternExpression);
  const guesses = choices.filter(({ name, isSure }) => !isSure && !decided.some((pattern) => pattern.test(name)));
  if (guesses.length === 0) return undefined;
  const rows = guesses
    .slice(0, listedCount)
    .map(
      ({ name, shape, isTrained, why }) =>
        `${isTrained ? 'trained' : 'fixed  '}  ${name} [${shape.join(', ')}]: ${why}`,
    );
  const rest =
    guesses.length > listedCount ? [`and ${guesses.length - listedCount} more: asteroid inspect lists all`] : [];
  return [
    'The file does not say whether these tensors are parameters; --freeze and --train decide otherwise:',
    ...rows,
    ...rest,
  ].join('\n');
}

/** The plan, knowing which of the model's layers only run forward. */
export function withForwardOnly(plan: Plan, sequence: LayerSequence): Plan {
  const forwardOnlyLayers = forwardOnlyCount(sequence);
  return forwardOnlyLayers === (plan.forwardOnlyLayers ?? 0) ? plan : { ...plan, forwardOnlyLayers };
}

function nothingLeft({ freezeAllBut }: { readonly freezeAllBut: readonly string[] }): InputError {
  return new InputError(
    freezeAllBut.length > 0
      ? '--freeze leaves nothing of what --freeze-all-but names: freeze fewer.'
      : '--freeze leaves no parameter to train: freeze fewer.',
  );
}

/**
 * The parameters that match a pattern of `freeze` or none of `freezeAllBut` (`*` stands for any text). Throws
 * InputError for a pattern that matches none, with the names that come closest.
 */
export function frozenNames(
  parameters: readonly string[],
  {
    freeze = [],
    freezeAllBut = [],
  }: { readonly freeze?: readonly string[]; readonly freezeAllBut?: readonly string[] },
): string[] {
  const frozen = matching(parameters, freeze, '--freeze');
  const spared = matching(parameters, freezeAllBut, '--freeze-all-but');
  return parameters.filter((name) => frozen.has(name) || (freezeAllBut.length > 0 && !spared.has(name)));
}
