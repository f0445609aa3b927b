// A run's report as one page that needs nothing else: no scripts, no network, light and dark by the reader's choice.

import { createHash } from 'node:crypto';
import { panels } from '../curve/chart.ts';
import { type ChartColors, panelSvg } from '../curve/svg-chart.ts';
import { counted, duration, grouped } from '../terminal.ts';
import { confusionPart, worstPart } from './class-parts.ts';
import { devicesPart, planPart, timesPart } from './device-parts.ts';
import { element, text } from './html.ts';
import type { RunFacts } from './read-run.ts';
import { style } from './report-style.ts';

const colors: ChartColors = {
  train: 'var(--train)',
  test: 'var(--test)',
  grid: 'var(--line)',
  text: 'var(--text)',
  faint: 'var(--faint)',
  ground: 'var(--ground)',
};

/** The page. */
export function reportPage(run: RunFacts): string {
  const allowed = createHash('sha256').update(style).digest('base64');
  const sources = `default-src 'none'; img-src data:; style-src 'sha256-${allowed}'`;
  const policy = `${sources}; base-uri 'none'; form-action 'none'`;
  const parts = [
    head(run),
    cards(run),
    section('Learning curve', curves(run)),
    ...(run.results === undefined ? [] : [confusionPart(run.results), worstPart(run.results)].flat()).map(
      ([title, body]) => section(title, body),
    ),
    ...(run.plan === undefined ? [] : [section('Plan', planPart(run))]),
    section('Devices', devicesPart(run)),
    section('Times', timesPart(run)),
    settings(run),
  ];
  return [
    '<!doctype html>',
    '<html lang="en">',
    '<head>',
    '<meta charset="utf-8">',
    `<meta http-equiv="Content-Security-Policy" content="${policy}">`,
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<meta name="color-scheme" content="light dark">',
    '<meta name="generator" content="asteroid">',
    `<title>${text(`${run.name} – Asteroid`)}</title>`,
    `<style>${style}</style>`,
    '</head>',
    '<body>',
    '<main>',
    ...parts.filter((part) => part !== ''),
    '</main>',
    '</body>',
    '</html>',
    '',
  ].join('\n');
}

function section(title: string, body: string): string {
  return body === '' ? '' : element('section', {}, element('h2', {}, text(title)), body);
}

function head({ name, settings: all }: RunFacts): string {
  const of = (key: string): string => (typeof all[key] === 'string' ? (all[key] as string) : '');
  const what = [of('model'), of('data')].filter((part) => part !== '').join(' on ');
  return element('header', {}, element('h1', {}, text(name)), element('p', {}, text(what)));
}

/** The few numbers that everyone looks for first. */
function cards({ results, curve, roundCount, samplesPerS, devices, plan, spans }: RunFacts): string {
  const percent = (value: number): string => `${(value * 100).toFixed(2)} %`;
  const shown: (readonly [label: string, value: string, note: string])[] = [];
  const tested = results === undefined ? '' : `on ${counted(results.sampleCount, 'test sample')}`;
  if (typeof results?.accuracy === 'number') shown.push(['Accuracy', percent(results.accuracy), tested]);
  if (typeof results?.loss === 'number')
    shown.push(['Test loss', results.loss.toPrecision(4), `after ${counted(results.round, 'round')}`]);
  if (typeof results?.perplexity === 'number')
    shown.push(['Perplexity', results.perplexity.toPrecision(4), 'of a token']);
  if (typeof results?.meanAbsoluteError === 'number')
    shown.push(['Mean absolute error', results.meanAbsoluteError.toPrecision(4), tested]);
  if (typeof results?.r2 === 'number') shown.push(['R²', results.r2.toFixed(3), '1 is perfect, 0 is the mean']);
  const last = curve.loss.train.at(-1);
  if (last !== undefined) shown.push(['Training loss', last.y.toPrecision(4), `after ${counted(roundCount, 'round')}`]);
  const training = spans.find(({ name }) => name === 'training');
  if (training !== undefined) shown.push(['Training', duration(training.seconds), 'tests included']);
  if (samplesPerS !== undefined)
    shown.push(['Speed', grouped(Math.round(samplesPerS)), 'samples a second, the median round']);
  const used = new Set(plan?.stages.flatMap((stage) => stage.devices));
  if (used.size > 0)
    shown.push([
      'Devices',
      String(used.size),
      devices.length > used.size ? `of ${devices.length} that joined` : counted(plan?.stages.length ?? 0, 'stage'),
    ]);
  return element(
    'dl',
    { class: 'cards' },
    ...shown.map(([label, value, note]) =>
      element(
        'div',
        {},
        element('dt', {}, text(label)),
        element('dd', {}, text(value)),
        ...(note === '' ? [] : [element('dd', { class: 'note' }, text(note))]),
      ),
    ),
  );
}

function curves({ curve }: RunFacts): string {
  const drawn = panels(curve).map((panel, index) => element('figure', {}, panelSvg(panel, colors, `plot-${index}`)));
  return element('div', { class: 'charts' }, ...drawn);
}

function settings({ settings: all }: RunFacts): string {
  const rows = Object.entries(all).map(
    ([name, value]) => `${name}: ${typeof value === 'string' ? value : JSON.stringify(value)}`,
  );
  if (rows.length === 0) return '';
  return element(
    'section',
    {},
    element('details', {}, element('summary', {}, text('Settings')), element('pre', {}, text(rows.join('\n')))),
  );
}
