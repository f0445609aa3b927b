// What of a model a run trains: the parameters that stay as they are (--freeze, --freeze-all-but), the tensors that are
// parameters although nothing says so (--train), and the layers that follow from that.

import type { Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { freezeBatchNormalization } from '../../graph/freeze.ts';
import type { Graph, RunningVariance } from '../../graph/graph.ts';
import { forwardOnlyCount, type LayerSequence, layers } from '../../graph/layers.ts';
import type { WeightChoice } from '../../graph/onnx/parameters.ts';
import type { LossKind } from '../../training/losses.ts';
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
  { loss, output, freeze, freezeAllBut, train = [], runningVariance = model.runningVariance }: FineTuning,
  choices: readonly WeightChoice[] = [],
): TrainedLayers {
  const graph = withMoreParameters(model, choices, train);
  const guesses = guessesNote(choices, { freeze, freezeAllBut, train });
  const { graph: open, notes: ofOutput } = outputOf(graph, loss, output);
  const notes = [...(guesses === undefined ? [] : [guesses]), ...ofOutput];
  const frozen = frozenNames(open.parameters, { freeze, freezeAllBut });
  const trained = runningVariance === undefined ? open : { ...open, runningVariance };
  const sequence = layers(freezeBatchNormalization(trained, frozen), { frozen });
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

function matching(parameters: readonly string[], patterns: readonly string[], flag: string): Set<string> {
  const found = new Set<string>();
  for (const pattern of patterns) {
    const expression = patternExpression(pattern);
    const matches = parameters.filter((name) => expression.test(name));
    if (matches.length === 0) {
      const close = closest(pattern, parameters).join(', ');
      throw new InputError(
        `${flag} ${pattern} matches no ${flag === '--train' ? 'float tensor' : 'parameter'}: ` +
          `${parameters.length > shownCount ? 'the closest of the model’s names are' : 'the model has'} ${close}.`,
      );
    }
    for (const name of matches) found.add(name);
  }
  return found;
}

/** `*` stands for any text. */
function patternExpression(pattern: string): RegExp {
  return new RegExp(`^${pattern.replace(/[.+?^${}()|[\]\\]/g, '\\$&').replace(/\*/g, '.*')}$`);
}

/** How many names an error lists. */
const shownCount = 4;

/** The names that take the fewest changes to become the pattern, in the model's order where equal. */
function closest(pattern: string, names: readonly string[]): readonly string[] {
  return names
    .map((name) => ({ name, distance: patternDistance(pattern, name) }))
    .sort((a, b) => a.distance - b.distance)
    .slice(0, shownCount)
    .map(({ name }) => name);
}

/**
 * Characters to insert, delete or replace so that the name matches; those that a `*` stands for cost nothing
 * (Levenshtein 1966, row by row).
 */
function patternDistance(pattern: string, name: string): number {
  let row = Array.from({ length: name.length + 1 }, (_, index) => index);
  for (const sign of pattern) {
    const next = [sign === '*' ? (row[0] as number) : (row[0] as number) + 1];
    for (let index = 1; index <= name.length; index++) {
      const [left, above, corner] = [next[index - 1] as number, row[index] as number, row[index - 1] as number];
      next.push(
        sign === '*'
          ? Math.min(left, above)
          : Math.min(left + 1, above + 1, corner + (sign === name[index - 1] ? 0 : 1)),
      );
    }
    row = next;
  }
  return row[name.length] as number;
}
