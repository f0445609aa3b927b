// asteroid inspect: what an ONNX file holds and what of it would be trained, before anything runs.

import type { Command } from 'commander';
import { InputError } from '../../errors.ts';
import { parseInputShape } from '../../graph/onnx/input-shapes.ts';
import { describeFile } from '../../runtime/host/models.ts';
import type { DescribedTensor, DescribedValue, ModelDescription } from '../../runtime/run/describe-model.ts';
import { collected } from '../flag-values.ts';
import { createOutput } from '../output.ts';
import { counted, grouped, labelWidth, type Terminal } from '../terminal.ts';

interface InspectOptions {
  readonly model?: string;
  readonly inputShape: readonly string[];
  readonly output?: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addInspect(program: Command): Command {
  return program
    .command('inspect')
    .description('show what a model holds and what of it would be trained')
    .option('--model <FILE>', 'an ONNX model, or the name of a built-in one')
    .option(
      '--input-shape <NAME=SHAPE>',
      'sizes that the file leaves open, as x=N,3,224,224; repeatable',
      collected,
      [],
    )
    .option('--output <NAME>', "the model's output that the loss takes (default: its first)")
    .addHelpText('after', '\nExample:\n  $ asteroid inspect --model net.onnx')
    .action((options: InspectOptions) => inspect(options));
}

async function inspect(options: InspectOptions): Promise<void> {
  const output = createOutput(options);
  if (options.model === undefined)
    throw new InputError('--model is missing: give an .onnx file or the name of a built-in model.');
  const description = await describeFile(options.model, options.inputShape.map(parseInputShape), options.output);
  output.json({ model: options.model, ...description });
  if (!output.isJson) print(options.model, description, output.terminal);
}

function print(model: string, description: ModelDescription, terminal: Terminal): void {
  const { producer, opset, inputs, outputs, operators, buffers, layerCount, notes, refused, tensors } = description;
  const width = (terminal.isInteractive ? Math.max(60, terminal.columns) : 80) - labelWidth;
  const show = (label: string, text: string): void => {
    for (const line of wrapped(text, width)) terminal.section(label, line);
  };
  show('Model', `${model}, by ${producer}${opset === null ? '' : `, opset ${opset}`}`);
  for (const value of inputs) show('Inputs', valueText(value));
  for (const value of outputs) show('Outputs', valueText(value));
  show('Batch', batchText(description));
  show(
    'Operators',
    Object.entries(operators)
      .map(([name, count]) => `${name} ${grouped(count)}`)
      .join(', '),
  );
  if (layerCount !== null) show('Layers', `${grouped(layerCount)}, between which it can be cut`);
  printTensors(
    'Trained',
    tensors.filter(({ trained }) => trained),
    width,
    terminal,
  );
  const fixed = tensors.filter(({ trained }) => !trained);
  const numbers = fixed.filter(({ count, sure }) => count === 1 && sure);
  printTensors(
    'Fixed',
    fixed.filter((tensor) => !numbers.includes(tensor)),
    width,
    terminal,
  );
  if (numbers.length > 0) show('Fixed', `${counted(numbers.length, 'number')} of formulas`);
  if (buffers.length > 0)
    show('Statistics', `${counted(buffers.length, 'vector')} of batch normalization, updated in training`);
  for (const note of notes) show('Note', note);
  if (refused !== null) show('Refused', refused);
}

function valueText({ name, type, shape }: DescribedValue): string {
  return `${name}  ${type}${shape === null ? ', no shape' : ` [${shape.join(', ')}]`}`;
}

function batchText({ batch, batchAxes, openSizes }: ModelDescription): string {
  const axes = Object.entries(batchAxes).map(([name, axis]) =>
    axis === null ? `not in ${name}` : `axis ${axis} of ${name}`,
  );
  const size = batch === null ? 'not known' : batch === 'any' ? 'of any size' : `of exactly ${batch}`;
  const open = openSizes.length === 0 ? '' : `; open sizes, from the data or --input-shape: ${openSizes.join(', ')}`;
  return `${size}${axes.length === 0 ? '' : `: ${axes.join(', ')}`}${open}`;
}

/** One line a tensor; a second one with the reason where it is a guess, or why it is fixed. */
function printTensors(label: string, tensors: readonly DescribedTensor[], width: number, terminal: Terminal): void {
  const total = tensors.reduce((sum, { count }) => sum + count, 0);
  terminal.section(label, `${counted(tensors.length, 'tensor')}, ${counted(total, 'element')}`);
  const shapes = tensors.map(({ shape }) => `[${shape.join(', ')}]`);
  const counts = tensors.map(({ count }) => grouped(count));
  const [shapeWidth, countWidth] = [shapes, counts].map((texts) =>
    Math.max(0, ...texts.map((text) => text.length)),
  ) as [number, number];
  const nameWidth = Math.max(16, Math.min(longest(tensors), width - shapeWidth - countWidth - 4));
  for (const [index, { name, trained, sure, why }] of tensors.entries()) {
    const shown = clipMiddle(name, nameWidth).padEnd(nameWidth);
    terminal.section(
      label,
      `${shown}  ${(shapes[index] ?? '').padEnd(shapeWidth)}  ${(counts[index] ?? '').padStart(countWidth)}`,
    );
    if (!trained || !sure)
      for (const line of wrapped(`${sure ? '' : 'a guess: '}${why}`, width - 2)) terminal.section(label, `  ${line}`);
  }
}

function longest(tensors: readonly DescribedTensor[]): number {
  return Math.max(0, ...tensors.map(({ name }) => name.length));
}

/** The beginning and the end of a name that is too long: numbers of blocks stand in the one, the kind in the other. */
function clipMiddle(text: string, width: number): string {
  if (text.length <= width) return text;
  const head = Math.ceil((width - 1) / 2);
  return `${text.slice(0, head)}…${text.slice(text.length - (width - 1 - head))}`;
}

/** The text in lines of at most `width` characters where its words allow it. */
function wrapped(text: string, width: number): readonly string[] {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    if (line !== '' && line.length + 1 + word.length > width) {
      lines.push(line);
      line = word;
    } else line = line === '' ? word : `${line} ${word}`;
  }
  return [...lines, line];
}
