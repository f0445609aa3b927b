// The one name that differentiation and training share.

/** What graphs call the gradient of an input or a parameter. */
export function gradientName(value: string): string {
  return `gradient(${value})`;
}
