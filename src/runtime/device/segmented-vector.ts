// Arrays that lie apart, as one vector: a stage's gradients are summed over a group in pieces of one size, whatever
// tensors they are. One array for all of them would be as much fresh memory in every round, and two copies of it
// (ResNet-50, 94 MB on a fifth of a core: up to a second of a round of eight).

import { assert, defined } from '../../assert.ts';
import { takeMemory } from '../../transport/tensor-memory.ts';
import { addTo } from './float-sum.ts';

/** Float32 arrays, one behind the other. What is written is in the arrays. */
export class SegmentedVector {
  readonly segments: readonly Float32Array[];
  /** Elements of all of them. */
  readonly length: number;
  /** Where each begins. */
  readonly #firsts: readonly number[];

  constructor(segments: readonly Float32Array[]) {
    const firsts: number[] = [];
    let length = 0;
    for (const segment of segments) {
      firsts.push(length);
      length += segment.length;
    }
    this.segments = segments;
    this.length = length;
    this.#firsts = firsts;
  }

  /** The elements from `first` to before `end`, as views. */
  views(first: number, end: number): readonly Float32Array[] {
    assert(first >= 0 && first <= end && end <= this.length, `${first} to ${end} of ${this.length}`);
    const views: Float32Array[] = [];
    for (let index = this.#segmentAt(first), at = first; at < end; index++) {
      const segment = defined(this.segments[index], 'a segment');
      const segmentFirst = defined(this.#firsts[index], 'its place');
      const view = segment.subarray(at - segmentFirst, end - segmentFirst);
      if (view.length > 0) views.push(view);
      at += view.length;
    }
    return views;
  }

  /** The elements from `first` to before `end` as a vector; they stay where they are. */
  part(first: number, end: number): SegmentedVector {
    return new SegmentedVector(this.views(first, end));
  }

  /** A copy in memory of `tensor-memory.ts`, to be given back there. */
  copy(first: number, end: number): Float32Array {
    const copy = new Float32Array(takeMemory(4 * (end - first)).buffer);
    this.#each(first, end, copy, (own, part) => part.set(own));
    return copy;
  }

  /** target ← target + the elements from `first` on. */
  addTo(target: Float32Array, first: number): void {
    this.#each(first, first + target.length, target, (own, part) => addTo(part, own));
  }

  /** Puts values in the place of the elements from `first` on. */
  write(values: Float32Array, first: number): void {
    this.#each(first, first + values.length, values, (own, part) => own.set(part));
  }

  /** Calls with each view and the part of `values` at its place. */
  #each(
    first: number,
    end: number,
    values: Float32Array,
    visit: (own: Float32Array, part: Float32Array) => void,
  ): void {
    let at = 0;
    for (const view of this.views(first, end)) {
      visit(view, values.subarray(at, at + view.length));
      at += view.length;
    }
  }

  /** The last segment that begins at or before an element: by halving. */
  #segmentAt(element: number): number {
    let [low, high] = [0, this.#firsts.length];
    while (low + 1 < high) {
      const middle = (low + high) >> 1;
      if (defined(this.#firsts[middle], 'a place') <= element) low = middle;
      else high = middle;
    }
    return low;
  }
}
