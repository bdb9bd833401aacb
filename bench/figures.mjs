// Renders the figures of all READMEs from the newest reports. Every bench whose --report is in
// bench/reports does the same. Usage: node bench/figures.mjs
import { renderReadmes } from './figures/readmes.mjs';

const changed = renderReadmes();
console.log(changed.length === 0 ? 'every figure is as reported' : changed.join('\n'));
