// The results of a run's test as a document, evaluation.json: for the report, for programs, and for the terminal.

import { z } from 'zod';
import type { Evaluation } from '../../runtime/run/evaluate.ts';
import type { Dataset } from '../../training/data/dataset.ts';
import { isNumberLoss, type LossKind } from '../../training/losses.ts';
import { classScores, type SampleScore } from '../../training/scores.ts';
import { viewSamples } from './sample-views.ts';

/** One class, or one of several labels. A score is null where nothing counts for it. */
export interface ClassResult {
  readonly name: string;
  readonly sampleCount: number;
  readonly recall: number | null;
  readonly precision: number | null;
  readonly f1: number | null;
}

/** A sample that the model got wrong, or nearly. */
export interface WorstSample {
  readonly name: string;
  readonly loss: number | null;
  readonly label: string;
  readonly predicted: string;
  readonly probability?: number | null | undefined;
  /** A PNG as data URI. */
  readonly picture?: string | undefined;
  readonly text?: string | undefined;
}

export interface TestResults {
  /** Rounds that the tested model has seen. */
  readonly round: number;
  readonly loss: number | null;
  readonly accuracy: number | null;
  readonly perplexity?: number | null | undefined;
  readonly meanAbsoluteError?: number | null | undefined;
  readonly r2?: number | null | undefined;
  readonly sampleCount: number;
  readonly classes?: readonly ClassResult[] | undefined;
  /** [class][predicted class]. */
  readonly confusion?: readonly (readonly number[])[] | undefined;
  readonly worst: readonly WorstSample[];
}

const fraction: z.ZodType<number | null> = z.number().min(0).max(1).nullable();
const count: z.ZodType<number> = z.number().int().min(0);

const schema: z.ZodType<TestResults> = z.object({
  round: count,
  loss: z.number().nullable(),
  accuracy: fraction,
  perplexity: z.number().nullish(),
  meanAbsoluteError: z.number().nullish(),
  r2: z.number().nullish(),
  sampleCount: count,
  classes: z
    .array(z.object({ name: z.string(), sampleCount: count, recall: fraction, precision: fraction, f1: fraction }))
    .max(1000)
    .optional(),
  confusion: z.array(z.array(count).max(1000)).max(1000).optional(),
  worst: z
    .array(
      z.object({
        name: z.string(),
        loss: z.number().nullable(),
        label: z.string(),
        predicted: z.string(),
        probability: fraction.optional(),
        picture: z
          .string()
          .max(1e6)
          .regex(/^data:image\/png;base64,[A-Za-z0-9+/=]*$/)
          .optional(),
        text: z.string().max(10_000).optional(),
      }),
    )
    .max(100),
});

/** Checks what was read from a file. Throws ZodError. */
export function parseTestResults(document: unknown): TestResults {
  const found = schema.parse(document);
  const size = found.classes?.length ?? 0;
  if (found.confusion?.some((row) => row.length !== size) === true || (found.confusion?.length ?? size) !== size)
    throw new z.ZodError([
      { code: 'custom', message: 'the confusion matrix is not square', path: [], input: undefined },
    ]);
  return found;
}

/** What to make the document of. */
export interface TestedRun {
  readonly round: number;
  readonly evaluation: Evaluation;
  readonly loss: LossKind;
  readonly test: Dataset;
  /** The text of a tokenizer.json, for texts. */
  readonly tokenizer: string | undefined;
  readonly classNames: readonly string[] | undefined;
}

/** The document of a test, with views of its worst samples. */
export async function testResults(tested: TestedRun): Promise<TestResults> {
  const { round, evaluation, loss: kind, test, tokenizer, classNames } = tested;
  const { loss, accuracy, sampleCount, perplexity, details } = evaluation;
  const { confusion, labels, meanAbsoluteError, r2, worst = [] } = details ?? {};
  const nameOf = (index: number): string => classNames?.[index] ?? String(index);
  const scores = confusion === undefined ? labels?.map(labelScores) : classScores(confusion);
  const views = await viewSamples(
    test,
    worst.map(({ sample }) => sample),
    tokenizer,
  );
  return {
    round,
    loss,
    accuracy,
    sampleCount,
    ...(perplexity === undefined ? {} : { perplexity }),
    ...(meanAbsoluteError === undefined ? {} : { meanAbsoluteError }),
    ...(r2 === undefined ? {} : { r2 }),
    ...(scores === undefined ? {} : { classes: scores.map((score, index) => ({ name: nameOf(index), ...score })) }),
    ...(confusion === undefined ? {} : { confusion: confusion.map((row) => [...row]) }),
    worst: worst.map((score, index) => ({
      name: String(score.sample),
      ...views[index],
      ...shown(score, isNumberLoss(kind) ? String : nameOf),
    })),
  };
}

function shown(
  { loss, label, predicted, probability }: SampleScore,
  nameOf: (value: number) => string,
): Pick<TestResults['worst'][number], 'loss' | 'label' | 'predicted' | 'probability'> {
  const text = (values: readonly number[]): string =>
    values.map((value) => nameOf(Number(value.toPrecision(5)))).join(', ') || 'none';
  return {
    loss: Number.isFinite(loss) ? loss : null,
    label: text(label),
    predicted: text(predicted),
    ...(probability === undefined ? {} : { probability }),
  };
}

/** Scores of one of several labels, from what is neither, only predicted, only a label, and both. */
function labelScores([, onlyPredicted, onlyLabel, both]: readonly [number, number, number, number]): {
  readonly sampleCount: number;
  readonly recall: number | null;
  readonly precision: number | null;
  readonly f1: number | null;
} {
  const part = (of: number): number | null => (of === 0 ? null : both / of);
  const all = 2 * both + onlyPredicted + onlyLabel;
  return {
    sampleCount: onlyLabel + both,
    recall: part(onlyLabel + both),
    precision: part(onlyPredicted + both),
    f1: all === 0 ? null : (2 * both) / all,
  };
}

/** Classes that are taken for others, the most frequent first. */
export function confusedPairs({ classes = [], confusion = [] }: TestResults): readonly {
  readonly from: string;
  readonly to: string;
  readonly count: number;
}[] {
  const nameOf = (index: number): string => classes[index]?.name ?? String(index);
  return confusion
    .flatMap((row, from) => row.map((found, to) => ({ from, to, count: found })))
    .filter(({ from, to, count: found }) => from !== to && found > 0)
    .sort((a, b) => b.count - a.count || a.from - b.from || a.to - b.to)
    .map(({ from, to, count: found }) => ({ from: nameOf(from), to: nameOf(to), count: found }));
}
