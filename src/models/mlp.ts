// Fully connected layers, for the rows of a table: each a linear layer and its activation, then one to the outputs.

import type { GraphBuilder } from '../graph/builder.ts';

/** Options of {@link mlp}. */
export interface MlpOptions {
  /** Widths of the hidden layers, from the input on, such as "128-64". */
  readonly hidden: string;
  readonly activation: 'relu' | 'tanh';
  /** After each hidden layer; 0: none. */
  readonly dropout: number;
  /** Outputs. */
  readonly classes: number;
}

/** Logits, or numbers, of rows x [N, features]. */
export function mlp(b: GraphBuilder, x: string, { hidden, activation, dropout, classes }: MlpOptions): string {
  let y = x;
  for (const [index, width] of hidden.split('-').entries()) {
    y = b[activation](b.linear(y, { name: `fc${index + 1}`, outFeatures: Number(width) }));
    if (dropout > 0) y = b.dropout(y, dropout);
  }
  return b.linear(y, { name: 'head', outFeatures: classes });
}
