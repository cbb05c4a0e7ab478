// The figure in a notebook: shows the story that the kernel holds, and says so when that kernel is gone.
// It comes after kv_story.js, which defines the element; anywidget calls render for each place where it is shown.
export default {
  /** @param {{model: any, el: HTMLElement}} place */
  render({ model, el }) {
    const figure = /** @type {any} */ (document.createElement("kv-story"));
    const word = document.createElement("p");
    word.setAttribute("role", "status");
    const show = () => {
      word.textContent = "";
      figure.data = model.get("story");
    };
    const gone = () => {
      word.textContent = "The kernel that held this cache has stopped. Run the cell again to go on.";
    };
    el.append(word, figure);
    show();
    model.on("change:story", show);
    model.on("comm_live_update", gone); // by jupyter-widgets, when a kernel restarts or ends
    return () => {
      model.off("change:story", show);
      model.off("comm_live_update", gone);
    };
  },
};
