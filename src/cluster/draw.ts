// A plan as a small picture of text: stages as boxes in a row, joined by arrows, with layers, devices, shares and
// memory. No colour.

import type { Plan, PlanLayout, StagePlan } from './cluster.ts';

/** Device lines of a box before the rest is only counted. */
const deviceLimit = 8;

/** Letters of a layer's name where two stand in one line. */
const nameLimit = 20;

/**
 * Draws a plan, at most `width` columns wide (52 to 100, default 100); stages that do not fit in a row continue in the
 * next. `layerNames` are those of the profile. Without a prediction there are no speeds and no memory.
 */
export function drawPlan(
  plan: PlanLayout & { readonly predicted?: Plan['predicted'] },
  layerNames: readonly string[],
  width = 100,
): string {
  const columns = Math.max(52, Math.min(width, 100));
  const boxes = plan.stages.map((stage, index) => drawStage(stage, index, plan, layerNames, columns - 8));
  const widthOf = (box: readonly string[]): number => (box[0] ?? '').length;
  const inOneRow = boxes.reduce((sum, box) => sum + widthOf(box), 4 * (boxes.length - 1)) <= columns;
  const rows: string[][][] = [];
  let used = 0;
  for (const box of boxes) {
    const space = widthOf(box) + 4;
    if (rows.length === 0 || (!inOneRow && used + space > columns)) {
      rows.push([]);
      used = 0;
    }
    used += space;
    rows.at(-1)?.push(box);
  }
  const lines = rows.flatMap((row, index) => joinBoxes(row, rows.length === 1 ? '' : index === 0 ? '   ' : '─▶ '));
  return [...lines, ...summary(plan)].join('\n');
}

function drawStage(
  stage: StagePlan,
  index: number,
  plan: PlanLayout & { readonly predicted?: Plan['predicted'] },
  layerNames: readonly string[],
  limit: number,
): string[] {
  const [first, end] = stage.layers;
  const [from, to] = [layerNames[first] ?? `layer ${first}`, layerNames[end - 1] ?? `layer ${end - 1}`];
  const shown = stage.devices.length > deviceLimit ? stage.devices.slice(0, deviceLimit - 1) : stage.devices;
  const cells = shown.map((name, place) => [
    name,
    `${stage.samples[place]} of ${plan.microBatchSize}`,
    memoryText(plan.predicted?.peakMemoryMiB[name]),
  ]);
  const content = [
    end - first === 1 ? from : `${shorten(from, nameLimit)} … ${shorten(to, nameLimit)}`,
    end - first === 1 ? `layer ${first}` : `layers ${first}–${end - 1}`,
    ...alignColumns(cells),
    ...(shown.length < stage.devices.length ? [`and ${stage.devices.length - shown.length} more devices`] : []),
  ].map((line) => shorten(line, limit));
  const title = ` stage ${index} `;
  const inner = Math.max(title.length, ...content.map((line) => line.length + 2));
  return [
    `┌${title}${'─'.repeat(inner - title.length)}┐`,
    ...content.map((line) => `│ ${line.padEnd(inner - 1)}│`),
    `└${'─'.repeat(inner)}┘`,
  ];
}

/** Names to the left, numbers to the right. */
function alignColumns(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? '').length)));
  return rows.map((row) =>
    row
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  ')
      .trimEnd(),
  );
}

/** Boxes side by side, an arrow between two at their first line of text. */
function joinBoxes(boxes: readonly (readonly string[])[], lead: string): string[] {
  const height = Math.max(...boxes.map((box) => box.length));
  return Array.from({ length: height }, (_, line) => {
    const arrow = line === 1;
    const cells = boxes.map((box) => box[line] ?? ' '.repeat((box[0] ?? '').length));
    return `${arrow ? lead : ' '.repeat(lead.length)}${cells.join(arrow ? ' ─▶ ' : '    ')}`.trimEnd();
  });
}

function summary(plan: PlanLayout & { readonly predicted?: Plan['predicted'] }): string[] {
  const noun = plan.microBatchCount === 1 ? 'micro-batch' : 'micro-batches';
  const batches = `${plan.microBatchCount} ${noun} of ${plan.microBatchSize}`;
  const lines = [`${plan.schedule}: ${plan.batchSize} samples a round in ${batches}`];
  if (plan.predicted !== undefined) {
    const { roundMs, samplesPerS, latencyMs } = plan.predicted;
    const alone = latencyMs === undefined ? '' : `, ${roundText(latencyMs)} for a micro-batch alone`;
    lines.push(`predicted: ${roundText(roundMs)} a round, ${digits(samplesPerS)} samples/s${alone}`);
  }
  return lines;
}

/** How long a round takes: "32.0 ms", "1.24 s". */
export function roundText(roundMs: number): string {
  return roundMs < 1000 ? `${digits(roundMs)} ms` : `${digits(roundMs / 1000)} s`;
}

/** Three significant digits, never an exponent. */
function digits(value: number): string {
  return value >= 100 ? value.toFixed(0) : value.toFixed(value >= 10 ? 1 : 2);
}

function memoryText(mib: number | undefined): string {
  if (mib === undefined) return '';
  return mib < 10240 ? `${digits(mib)} MiB` : `${digits(mib / 1024)} GiB`;
}

function shorten(text: string, limit: number): string {
  return text.length <= limit ? text : `${text.slice(0, limit - 1)}…`;
}
