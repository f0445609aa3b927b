// The report's parts about classes and samples.

import { svgElement } from '../../svg.ts';
import { counted } from '../terminal.ts';
import { bar, element, table, text } from './html.ts';
import { type ClassResult, confusedPairs, type TestResults, type WorstSample } from './test-results.ts';

type Part = readonly [title: string, body: string];

/** A larger matrix is a list of its largest entries. */
const largestMatrix = 40;
const shownPairCount = 15;
/** Shades of a matrix's cells, beside none. */
const shadeCount = 8;

/** Classes and confusions; nothing for a test without them. */
export function confusionPart(results: TestResults): readonly Part[] {
  const { classes = [], confusion } = results;
  if (classes.length === 0) return [];
  const parts: Part[] = [['Classes', classTable(classes)]];
  if (confusion === undefined) return parts;
  if (classes.length <= largestMatrix) parts.push(['Confusion matrix', matrix(classes, confusion)]);
  const pairs = confusedPairs(results).slice(0, shownPairCount);
  if (classes.length > largestMatrix && pairs.length > 0)
    parts.push([
      'Most confused',
      table(
        'pairs',
        ['class', 'taken for', 'times'],
        pairs.map(({ from, to, count }) => [text(from), text(to), String(count)]),
      ),
    ]);
  return parts;
}

function classTable(classes: readonly ClassResult[]): string {
  return table(
    'classes',
    ['class', 'samples', 'right', '', 'precision', 'F1'],
    classes.map(({ name, sampleCount, recall, precision, f1 }) => [
      text(name),
      String(sampleCount),
      percent(recall),
      recall === null ? '' : bar(recall),
      percent(precision),
      percent(f1),
    ]),
  );
}

function percent(value: number | null): string {
  return value === null ? '–' : `${(value * 100).toFixed(1)}&#8239;%`;
}

function matrix(classes: readonly ClassResult[], confusion: readonly (readonly number[])[]): string {
  const head = classes.map(({ name }) => element('th', { scope: 'col' }, element('span', {}, text(name))));
  const rows = classes.map(({ name, sampleCount }, index) => {
    const cells = (confusion[index] ?? []).map((count, other) => {
      const shade = count === 0 ? 0 : Math.max(1, Math.round((shadeCount * count) / Math.max(1, sampleCount)));
      const kind = index === other ? 'right' : 'wrong';
      const title = `${name} predicted as ${classes[other]?.name}: ${count}`;
      return element('td', { class: `${kind} s${shade}`, title }, count === 0 ? '' : String(count));
    });
    return element('tr', {}, element('th', { scope: 'row' }, text(name)), ...cells);
  });
  const note = 'Rows are the classes of the samples, columns what the model took them for.';
  return [
    element('p', { class: 'note' }, text(note)),
    element(
      'div',
      { class: 'wide' },
      element(
        'table',
        { class: 'matrix' },
        element('thead', {}, element('tr', {}, element('td', {}), ...head)),
        element('tbody', {}, ...rows),
      ),
    ),
  ].join('');
}

/** The samples with the largest losses. */
export function worstPart({ worst }: TestResults): readonly Part[] {
  if (worst.length === 0) return [];
  const note = `The ${counted(worst.length, 'test sample')} with the largest loss: wrong labels are often among them.`;
  const kind = worst.some(({ text: words }) => words !== undefined) ? 'samples texts' : 'samples';
  return [
    [
      'Worst samples',
      element('p', { class: 'note' }, text(note)) + element('ul', { class: kind }, ...worst.map(sample)),
    ],
  ];
}

function sample({ name, loss, label, predicted, probability, picture, text: words }: WorstSample): string {
  const sure = typeof probability === 'number' ? ` (${(probability * 100).toFixed(0)} %)` : '';
  const isRight = label === predicted;
  const short = name.split(/[\\/]/).slice(-2).join('/');
  return element(
    'li',
    {},
    ...(picture === undefined ? [] : [image(picture, name)]),
    ...(words === undefined ? [] : [element('blockquote', {}, text(words))]),
    element(
      'p',
      {},
      element('b', {}, text(label)),
      text(' as '),
      element('b', { class: isRight ? 'good' : 'bad' }, text(predicted + sure)),
    ),
    element(
      'p',
      { class: 'note', title: name },
      text(`${short}${loss === null ? '' : `, loss ${loss.toPrecision(3)}`}`),
    ),
  );
}

function image(picture: string, name: string): string {
  return svgElement('img', { src: picture, alt: name, loading: 'lazy' });
}
