// The naming convention for gradients that differentiation and training share.

/** The name, in graphs, of the gradient of an input or a parameter. */
export function gradientName(value: string): string {
  return `gradient(${value})`;
}
