// Where stages and devices stand in the picture: beside each other where there is room, else below each other.

import type { Plan } from '../../cluster/cluster.ts';

export type Point = readonly [x: number, y: number];

export interface Place {
  readonly device: string;
  readonly stage: number;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
  /** Where activations come in and go out; gradients go the other way. */
  readonly in: Point;
  readonly out: Point;
}

export interface StageBox {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
  readonly title: string;
  readonly detail: string;
}

export interface Picture {
  readonly width: number;
  readonly height: number;
  readonly stages: readonly StageBox[];
  readonly places: readonly Place[];
  readonly arrows: readonly string[];
}

const [head, row, gap, least, most] = [32, 34, 44, 168, 300] as const;

/** The picture of a plan in a width. */
export function layoutOf(plan: Plan, width: number): Picture {
  const count = plan.stages.length;
  const across = (width - gap * (count - 1)) / count;
  const isRow = across >= least;
  const stageWidth = isRow ? Math.min(most, across) : Math.min(width, 420);
  const heights = plan.stages.map(({ devices }) => head + row * devices.length + 4);
  const tallest = Math.max(...heights);
  const total = isRow ? stageWidth * count + gap * (count - 1) : stageWidth;
  const left = (width - total) / 2;
  let y = 1;
  const stages = plan.stages.map(({ layers }, index): StageBox => {
    const height = heights[index] ?? head;
    const x = isRow ? left + index * (stageWidth + gap) : left;
    const top = isRow ? 1 + (tallest - height) / 2 : y;
    y += height + gap * 0.7;
    const layerCount = layers[1] - layers[0];
    const detail = `${layerCount} layer${layerCount === 1 ? '' : 's'}`;
    return { x, y: top, width: stageWidth, height, title: `Stage ${index}`, detail };
  });
  const places = plan.stages.flatMap(({ devices }, stage) =>
    devices.map((device, index) => placeIn(stages[stage] as StageBox, device, stage, index, isRow)),
  );
  const arrows = stages.slice(1).map((to, index) => arrow(stages[index] as StageBox, to, isRow));
  return { width, height: isRow ? tallest + 2 : y, stages, places, arrows };
}

function placeIn({ x, y, width }: StageBox, device: string, stage: number, index: number, isRow: boolean): Place {
  const place = { x: x + 6, y: y + head + row * index, width: width - 12, height: row - 4 };
  const middle = place.y + place.height / 2;
  const ends: readonly [Point, Point] = isRow
    ? [
        [place.x, middle],
        [place.x + place.width, middle],
      ]
    : [
        [x + width / 2, place.y],
        [x + width / 2, place.y + place.height],
      ];
  return { device, stage, ...place, in: ends[0], out: ends[1] };
}

function arrow(from: StageBox, to: StageBox, isRow: boolean): string {
  if (!isRow) return `M${from.x + from.width / 2} ${from.y + from.height}V${to.y}`;
  const y = from.y + from.height / 2;
  return `M${from.x + from.width} ${y}H${to.x}`;
}
