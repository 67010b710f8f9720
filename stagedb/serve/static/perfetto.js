// Hands the timeline of a profile over to Perfetto, by its protocol for other pages: it answers PING with PONG once it
// can take a trace. Without this script there is the download.
const PATIENCE = 60_000;  // ms that Perfetto may take to load
const EVERY = 50;

const button = document.getElementById("perfetto");
const status = document.getElementById("perfetto-status");
const { trace, to, title } = button.dataset;
const origin = new URL(to).origin;

// Resolves once the opened window takes a trace.
function ready(opened) {
  return new Promise((resolve, reject) => {
    const end = Date.now() + PATIENCE;
    const done = (settle, value) => {
      clearInterval(asking);
      removeEventListener("message", answer);
      settle(value);
    };
    const answer = ({ source, origin: from, data }) => {
      if (source === opened && from === origin && data === "PONG") done(resolve);
    };
    const asking = setInterval(() => {
      if (opened.closed) done(reject, new Error("its window was closed"));
      else if (Date.now() > end) done(reject, new Error("it does not answer"));
      else opened.postMessage("PING", origin);
    }, EVERY);
    addEventListener("message", answer);
  });
}

async function read() {
  const found = await fetch(trace);
  if (!found.ok) throw new Error(`this server answers ${found.status}`);
  const name = /filename="([^"]+)"/.exec(found.headers.get("content-disposition") ?? "");
  return { buffer: await found.arrayBuffer(), title, fileName: name?.[1] ?? "trace.pftrace" };
}

button.addEventListener("click", async () => {
  const opened = open(to);  // at once: a browser opens a window only for a click
  if (opened === null) {
    status.textContent = "The browser opened no window: allow it for this page, or download the file.";
    return;
  }
  status.textContent = "The timeline is on its way…";
  try {
    const [perfetto] = await Promise.all([read(), ready(opened)]);
    opened.postMessage({ perfetto }, origin);
    status.textContent = "Perfetto has it, in its own window.";
  } catch (error) {
    status.textContent = `Perfetto did not take it: ${error.message}. Download the file instead.`;
  }
});
button.hidden = false;
