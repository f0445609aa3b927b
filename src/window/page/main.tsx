// The page of the window.

import { render } from 'preact';
import { App } from './app.tsx';
import { open } from './source.ts';

const root = document.getElementById('page');
if (root !== null) {
  root.replaceChildren();
  render(<App />, root);
}
void open();
