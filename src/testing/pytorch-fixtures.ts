// The networks of test/fixtures/pytorch with PyTorch's own losses (made by make_fixtures.py there, and by
// families/make_families.py). One entry for each ONNX file: nets that were exported in several ways appear once a way,
// with the same losses. Used by tests only.

import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/**
 * Sums over one parameter after the last step, in PyTorch's layout. A sum may be near 0: compare it against √(elements
 * · sumOfSquares).
 */
export interface WeightMoments {
  readonly shape: readonly number[];
  readonly sum: number;
  readonly sumOfSquares: number;
  /**
   * The tensor of the ONNX file that holds this parameter, and whether the exporter transposed it (which changes
   * neither sum).
   */
  readonly initializer: string;
  readonly transposed: boolean;
}

export interface PytorchFixture {
  /** Net and file, such as 'residual/opset13-fixed'. */
  readonly name: string;
  readonly net: string;
  readonly opset: number;
  /** 'fixed': the file is for batches of `batchSize` only. */
  readonly batch: 'dynamic' | 'fixed';
  /** 'eval': exported for inference, constants folded. */
  readonly mode: 'training' | 'eval';
  readonly exporter: 'torchscript' | 'dynamo';
  readonly modelPath: string;
  /** npy: 96 samples, or 64 of a family; numbers or tokens. */
  readonly inputsPath: string;
  /**
   * npy, integers: one a sample, or [samples, T] for a net that labels every token, [samples, H, W] for one that labels
   * every pixel.
   */
  readonly labelsPath: string;
  readonly learningRate: number;
  readonly momentum: number;
  readonly batchSize: number;
  /** 6, or 100 of a family. The batches go over the samples in order, again and again. */
  readonly stepCount: number;
  /** Mean cross-entropy of each batch in order, before its update. */
  readonly losses: readonly number[];
  readonly hasBatchNorm: boolean;
  /** True where two places of the net use one parameter. */
  readonly tiedWeights: boolean;
  readonly finalWeights: Readonly<Record<string, WeightMoments>>;
  /** Float initializers of the file that are not to be trained: masks, scalars. */
  readonly constants: readonly string[];
}

interface ExpectedFile {
  readonly inputs: string;
  readonly labels: string;
  readonly learningRate: number;
  readonly momentum: number;
  readonly batchSize: number;
  readonly stepCount: number;
  readonly losses: readonly number[];
  readonly hasBatchNorm: boolean;
  readonly tiedWeights: boolean;
  readonly finalWeights: Readonly<Record<string, Pick<WeightMoments, 'shape' | 'sum' | 'sumOfSquares'>>>;
  readonly models: readonly (Pick<PytorchFixture, 'opset' | 'batch' | 'mode' | 'exporter' | 'constants'> & {
    readonly file: string;
    readonly renamed: Readonly<Record<string, Pick<WeightMoments, 'initializer' | 'transposed'>>>;
  })[];
}

/** The small nets of six steps, sorted by name. Throws when there are none: a test over an empty list would pass. */
export function pytorchFixtures(): readonly PytorchFixture[] {
  return fixturesIn(fixtureFolder('pytorch'));
}

/** One net of each family that PyTorch users train, with 100 steps; sorted by name. Throws when there are none. */
export function familyFixtures(): readonly PytorchFixture[] {
  return fixturesIn(join(fixtureFolder('pytorch'), 'families'));
}

function fixturesIn(root: string): readonly PytorchFixture[] {
  const nets = readdirSync(root).filter((net) => existsSync(join(root, net, 'expected.json')));
  const fixtures = nets.flatMap((net) => fixturesOf(root, net));
  if (fixtures.length === 0) throw new Error(`No fixtures in ${root}: run the script there.`);
  return fixtures.sort((one, other) => (one.name < other.name ? -1 : 1));
}

/** Path of a folder in test/fixtures, from wherever the tests were compiled to inside the repository. */
export function fixtureFolder(name: string): string {
  for (let folder = import.meta.dirname; ; folder = join(folder, '..')) {
    const candidate = join(folder, 'test', 'fixtures', name);
    if (existsSync(candidate)) return candidate;
    if (folder === join(folder, '..')) throw new Error(`test/fixtures/${name} is not above ${import.meta.dirname}.`);
  }
}

function fixturesOf(root: string, net: string): PytorchFixture[] {
  const { models, inputs, labels, finalWeights, ...shared } = JSON.parse(
    readFileSync(join(root, net, 'expected.json'), 'utf8'),
  ) as ExpectedFile;
  return models.map(({ file, renamed, ...model }) => ({
    name: `${net}/${file.replace(/\.onnx$/, '')}`,
    net,
    opset: model.opset,
    batch: model.batch,
    mode: model.mode,
    exporter: model.exporter,
    constants: model.constants,
    modelPath: join(root, net, file),
    inputsPath: join(root, net, inputs),
    labelsPath: join(root, net, labels),
    learningRate: shared.learningRate,
    momentum: shared.momentum,
    batchSize: shared.batchSize,
    stepCount: shared.stepCount,
    losses: shared.losses,
    hasBatchNorm: shared.hasBatchNorm,
    tiedWeights: shared.tiedWeights,
    finalWeights: Object.fromEntries(
      Object.entries(finalWeights).map(([name, moments]) => [
        name,
        { initializer: name, transposed: false, ...moments, ...renamed[name] },
      ]),
    ),
  }));
}
