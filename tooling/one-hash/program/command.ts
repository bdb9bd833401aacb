// What runs in engines of the command line: one order, out of the first argument. The answer is the
// only output.
import { type Order, runOrder } from './run-order.ts';

declare const process: { readonly argv: readonly string[] };

const order = JSON.parse(process.argv[2]!) as Order;
console.log(JSON.stringify(await runOrder(order)));
