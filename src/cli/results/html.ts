// Writes HTML as text: elements with attributes, everything that is not an element escaped.

import { svgElement, svgText } from '../../svg.ts';

/** Text as content. */
export const text: (value: string) => string = svgText;

/** An element that has an end; `children` are elements already written, or text(). */
export function element(
  name: string,
  attributes: Readonly<Record<string, string | number>>,
  ...children: readonly string[]
): string {
  // An element without an end would take what follows it as its content.
  return svgElement(name, attributes, ...(children.length === 0 ? [''] : children));
}

/** A table with a head, columns of numbers to the right, in a box that scrolls sideways where it is too wide. */
export function table(name: string, head: readonly string[], rows: readonly (readonly string[])[]): string {
  const isNumber = head.map((_, column) => rows.length > 0 && rows.every((row) => /^(\d|–)/.test(row[column] ?? '')));
  const cells = (kind: string, values: readonly string[]): string =>
    element(
      'tr',
      {},
      ...values.map((value, column) => element(kind, isNumber[column] === true ? { class: 'number' } : {}, value)),
    );
  return element(
    'div',
    { class: 'wide' },
    element(
      'table',
      { class: name },
      element('thead', {}, cells('th', head)),
      element('tbody', {}, ...rows.map((row) => cells('td', row))),
    ),
  );
}

/** A bar that is full at 1. */
export function bar(fraction: number): string {
  return svgElement(
    'svg',
    { class: 'bar', viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    svgElement('rect', { class: 'rest', width: 100, height: 8, rx: 2 }),
    svgElement('rect', { class: 'part', width: 100 * fraction, height: 8, rx: 2 }),
  );
}
