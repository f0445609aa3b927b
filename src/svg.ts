// Writes SVG as text: elements with attributes, escaped. No layout.

/** An attribute's value; numbers are rounded to hundredths. */
export type SvgValue = string | number;

/** One element; `children` are elements already written, or text from svgText(). */
export function svgElement(
  name: string,
  attributes: Readonly<Record<string, SvgValue>>,
  ...children: readonly string[]
): string {
  const written = Object.entries(attributes).map(
    ([key, value]) => ` ${key}="${escaped(typeof value === 'number' ? rounded(value) : value)}"`,
  );
  const open = `<${name}${written.join('')}`;
  return children.length === 0 ? `${open}/>` : `${open}>${children.join('')}</${name}>`;
}

/** Text as content of an element. */
export function svgText(text: string): string {
  return escaped(text);
}

/** A whole document of this size in pixels, on white, with one font. */
export function svgDocument(width: number, height: number, ...children: readonly string[]): string {
  const attributes = {
    xmlns: 'http://www.w3.org/2000/svg',
    viewBox: `0 0 ${rounded(width)} ${rounded(height)}`,
    width,
    height,
  };
  const font = { 'font-family': 'system-ui, sans-serif', 'font-size': 12, fill: '#222' };
  const ground = svgElement('rect', { width, height, fill: '#fff' });
  return `${svgElement('svg', { ...attributes, ...font }, `\n${ground}\n`, `${children.join('\n')}\n`)}\n`;
}

function rounded(value: number): string {
  return String(Math.round(value * 100) / 100);
}

function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}
