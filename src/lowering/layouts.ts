// The layouts of the values of a graph being lowered: ONNX's row-major order (plain), the blocked layout of ONNX
// Runtime's CPU kernels, or channels last (rows). A value is converted once, when it is first needed in another layout.
//
// Blocked: [N, C, H, W] is stored as [N, C/B, H, W, B], with C rounded up to blocks of B. The added channels contain
// finite values that never count, since filters have zeros there. To ONNX Runtime the shape of such a value is [N, C
// rounded up, H, W].

import { assert, defined } from '../assert.ts';
import { padZeros } from '../autodiff/expressions.ts';
import type { Emitter } from '../graph/emitter.ts';
import { type Attributes, int } from '../graph/graph.ts';
import { dataTypeCode } from '../graph/operators/data-types.ts';
import { elementCount, sameShape, type Tensor, type ValueType } from '../graph/tensor.ts';

/** The domain of ONNX Runtime's operators on blocked values. */
export const blockedDomain = 'com.microsoft.nchwc';

/** The values of the graph being lowered, by their names there; `emitter` writes the lowered graph. */
export class Layouts {
  readonly emitter: Emitter;
  /** B: channels of a block. */
  readonly block: number;
  readonly #type: (value: string) => ValueType;
  readonly #plain = new Map<string, string>();
  readonly #blocked = new Map<string, string>();
  readonly #rows = new Map<string, string>();
  /** For values that are the same bytes in another shape: the original value. */
  readonly #origins = new Map<string, string>();
  /** Values [N, C, H, W] that repeat one element of [N, C, 1, 1]; written only when read. */
  readonly #spread = new Map<string, string>();
  /** Factors of 1, by their number of channels. */
  readonly #ones = new Map<number, string>();

  constructor(emitter: Emitter, type: (value: string) => ValueType, block: number) {
    this.emitter = emitter;
    this.#type = type;
    this.block = block;
  }

  /** The value's type in the graph being lowered. */
  type(value: string): ValueType {
    return this.#type(value);
  }

  shape(value: string): readonly number[] {
    return this.type(value).shape;
  }

  /** True if blocked and plain are the same bytes. */
  #isSame(value: string): boolean {
    const { shape } = this.type(value);
    return shape.length === 4 && shape[2] === 1 && shape[3] === 1 && (shape[1] as number) % this.block === 0;
  }

  /** True for a value that is available in the blocked layout at no cost. */
  isBlocked(value: string): boolean {
    return this.#blocked.has(value) || (this.#isSame(value) && this.#plain.has(value));
  }

  /** The value [N, C, 1, 1] that this one repeats, if any. */
  spreadSource(value: string): string | undefined {
    return this.#spread.get(value);
  }

  setPlain(value: string, name: string = value): void {
    this.#plain.set(value, name);
  }

  setBlocked(value: string, name: string): void {
    this.#blocked.set(value, name);
  }

  setSpread(value: string, source: string): void {
    this.#spread.set(value, source);
  }

  /** C rounded up to whole blocks. */
  padded(channels: number): number {
    return Math.ceil(channels / this.block) * this.block;
  }

  /** The shape of [N, C, H, W] in the runtime when it is blocked. */
  paddedShape([samples, channels, ...image]: readonly number[]): readonly number[] {
    return [samples as number, this.padded(channels as number), ...image];
  }

  /** The value's name in row-major order. */
  plain(value: string): string {
    const known = this.#plain.get(value);
    if (known !== undefined) return known;
    const source = this.#spread.get(value);
    const name = source === undefined ? this.#unblock(value) : this.#expand(value, source);
    this.#plain.set(value, name);
    return name;
  }

  /** The value's name in the blocked layout. */
  blocked(value: string): string {
    const known = this.#blocked.get(value);
    if (known !== undefined) return known;
    const plain = this.plain(value);
    const name = this.#isSame(value) ? plain : this.#reorderInput(plain, value);
    this.#blocked.set(value, name);
    return name;
  }

  /** The value's name in the layout [N, H, W, C]. */
  rows(value: string): string {
    const known = this.#rows.get(value);
    if (known !== undefined) return known;
    const [samples = 1, channels = 1, height = 1, width = 1] = this.shape(value);
    const shape = [samples, height, width, channels];
    const name =
      height * width === 1
        ? this.reshape(this.plain(value), shape)
        : this.emit('ReorderOutput', [this.blocked(value)], shape, { channels: int(channels), channels_last: int(1) });
    this.#rows.set(value, name);
    return name;
  }

  /** A factor of 1 for each of `count` channels. */
  ones(count: number): string {
    const known = this.#ones.get(count);
    if (known !== undefined) return known;
    const value: Tensor = { type: 'float32', shape: [count, 1, 1, 1], data: new Float32Array(count).fill(1) };
    const name = this.emitter.initializer(this.emitter.fresh('ones'), value);
    this.#ones.set(count, name);
    return name;
  }

  /** Writes a node of the runtime's own domain, whose result has the element type of its first input. */
  emit(
    operator: string,
    inputs: readonly string[],
    shape: readonly number[],
    attributes: Attributes = {},
    domain: string = blockedDomain,
  ): string {
    const { type } = this.emitter.type(inputs[0] as string);
    return this.emitter.emitTyped(operator, inputs, { type, shape }, attributes, domain);
  }

  /** The same bytes in another shape. */
  reshape(name: string, shape: readonly number[]): string {
    const e = this.emitter;
    const origin = this.#origins.get(name) ?? name;
    if (sameShape(e.shape(name), shape)) return name;
    if (sameShape(e.shape(origin), shape)) return origin;
    assert(elementCount(e.shape(origin)) === elementCount(shape), `[${e.shape(name)}] as [${shape}]`);
    const reshaped = e.emit('Reshape', [origin, e.int64s(shape)]);
    this.#origins.set(reshaped, origin);
    return reshaped;
  }

  /** Converts row-major [N, C, H, W] to blocked, under a new name; channels are padded to whole blocks with zeros. */
  #reorderInput(plain: string, value: string): string {
    const { type, shape } = this.type(value);
    const cast = (name: string, to: ValueType['type']): string =>
      this.emitter.emit('Cast', [name], { to: int(dataTypeCode(to)) });
    const floats = type === 'float32' ? plain : cast(plain, 'float32');
    // The kernel requires a multiple of four channels.
    const missing = (4 - ((shape[1] as number) % 4)) % 4;
    const zeros = shape.map(() => 0);
    const inFours = padZeros(
      this.emitter,
      floats,
      zeros,
      zeros.map((_, axis) => (axis === 1 ? missing : 0)),
    );
    const blocked = this.emit('ReorderInput', [inFours], this.paddedShape(shape));
    return type === 'float32' ? blocked : cast(blocked, type);
  }

  #unblock(value: string): string {
    const e = this.emitter;
    const blocked = defined(this.#blocked.get(value), `the value of ${value}`);
    const { type, shape } = this.type(value);
    if (this.#isSame(value)) return blocked;
    const channels = { channels: int(shape[1] as number) };
    if (type === 'float32') {
      const name = this.emitter.fresh('ReorderOutput');
      e.appendTyped(
        {
          operator: 'ReorderOutput',
          domain: blockedDomain,
          name,
          inputs: [blocked],
          outputs: [value],
          attributes: channels,
        },
        [{ type, shape }],
      );
      return value;
    }
    const floats = e.emit('Cast', [blocked], { to: int(dataTypeCode('float32')) });
    return e.emit('Cast', [this.emit('ReorderOutput', [floats], shape, channels)], { to: int(dataTypeCode(type)) });
  }

  #expand(value: string, source: string): string {
    const e = this.emitter;
    e.append({
      operator: 'Expand',
      domain: '',
      name: e.fresh('Expand'),
      inputs: [this.plain(source), e.int64s(this.shape(value))],
      outputs: [value],
      attributes: {},
    });
    return value;
  }
}
