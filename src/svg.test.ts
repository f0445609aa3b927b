import assert from 'node:assert/strict';
import { test } from 'node:test';
import { svgDocument, svgElement, svgText } from './svg.ts';

test('elements nest, text and attributes are escaped, numbers are rounded', () => {
  const title = svgElement('title', {}, svgText('a < b & "c"'));
  assert.equal(
    svgElement('rect', { x: 1 / 3, y: 2, class: '"q"' }, title),
    '<rect x="0.33" y="2" class="&quot;q&quot;"><title>a &lt; b &amp; &quot;c&quot;</title></rect>',
  );
  assert.equal(svgElement('path', { d: 'M0 0' }), '<path d="M0 0"/>');
});

test('a document has a size, a white ground and its children', () => {
  const lines = svgDocument(20, 10, svgElement('g', {})).split('\n');
  assert.match(
    lines[0] ?? '',
    /^<svg xmlns="http:\/\/www\.w3\.org\/2000\/svg" viewBox="0 0 20 10" width="20" height="10"/,
  );
  assert.deepEqual(lines.slice(1), ['<rect width="20" height="10" fill="#fff"/>', '<g/>', '</svg>', '']);
});
