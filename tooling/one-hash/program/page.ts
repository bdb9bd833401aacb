// A page that asks its server what to run, runs it in the page or in a worker of it, and posts the
// outcomes. So any browser that opens the page is an engine of the table.
import { type Order, type Outcome, runOrder } from './run-order.ts';

export interface PageOrder extends Order {
  readonly isInWorker: boolean;
}

/** What the page posts: outcomes, or why there are none. */
export type Answer = { readonly outcomes: readonly Outcome[] } | { readonly error: string };

function runInWorker(order: Order): Promise<Answer> {
  const worker = new Worker('/worker.js', { type: 'module' });
  return new Promise((resolve) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = ({ message }) => resolve({ error: message });
    worker.postMessage(order);
  });
}

const { isInWorker, ...order } = (await (await fetch('/order.json')).json()) as PageOrder;
const answer = isInWorker ? await runInWorker(order) : await answerTo(order);
await fetch('/answer', { method: 'POST', body: JSON.stringify(answer) });
document.title = 'one hash: done';

function answerTo(own: Order): Promise<Answer> {
  return runOrder(own).then(
    (outcomes) => ({ outcomes }),
    (error: Error) => ({ error: error.stack ?? String(error) }),
  );
}
